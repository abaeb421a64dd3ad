"""What `ptmjax compile` says of the large systems on pods, as docs/pods.md shows it.   python -m tests.pods [NAME ...]

Ten minutes on two fast cores, and libtpu. A report is a line of JSON on standard error as soon as it is there; the tables, in Markdown, come
last.
"""
import json
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence

HALF = "--gin.Experiment.compute='bfloat16'"
RUNS = {
    "bert_large": ["--gin_file=bert_large.gin", "--topology=v5e:16x16", "--mesh=data=64,model=4", HALF],
    "electra_large": ["--gin_file=electra_large.gin", "--topology=v5e:16x16", "--mesh=data=64,fsdp=4", HALF],
    "t5_large 512": ["--gin_file=t5_large.gin", "--topology=v5p:8x8x8", "--mesh=data=128,fsdp=4", HALF],
    "t5_large 4096": ["--gin_file=t5_large.gin", "--topology=v5p:16x16x16", "--mesh=data=512,fsdp=4,model=2", HALF],
    "t5_11b 512": ["--gin_file=t5_11b.gin", "--topology=v5p:8x8x8", "--mesh=data=16,fsdp=8,model=4", HALF],
    "t5_11b 4096": ["--gin_file=t5_11b.gin", "--topology=v5p:16x16x16", "--mesh=data=64,fsdp=8,model=8", HALF],
}
LAYERS = {f"{n} layers": [*RUNS["bert_large"], f"--gin.LAYERS={n}"] for n in (4, 12, 24)}
GIB = 2**30


def compiled(words: Sequence[str]) -> dict:
    """The report of one command, and the processor seconds that it took, which other work on the machine does not change much."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "ptmjax", "compile", *words, "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"ptmjax compile {' '.join(words)}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(done.stdout) | {"processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}
    print(json.dumps(report), file=sys.stderr, flush=True)
    return report


def rows(report: Mapping) -> dict[str, str]:
    there, least = report["bytes"], report["seconds_at_least"]
    gib = lambda *names: f"{sum(there[name] for name in names) / GIB:.2f}"
    return {
        "pod": f"{report['topology']}, {report['chips']} chips",
        "mesh": ", ".join(f"{axis} {n}" for axis, n in report["mesh"].items() if n > 1),
        "rows, tokens of a step": f"{report['rows']}, {report['tokens']:,}",
        "parameters a chip, GiB": gib("parameters"),
        "optimizer's state": gib("optimizer"),
        "carry and batch": gib("carry", "batch"),
        "padding": gib("padding"),
        "temporaries": gib("temporaries"),
        "program": gib("code"),
        "all of it": gib("peak"),
        "memory of a chip": f"{report['memory'] / GIB:.0f}",
        "fits": f"{'yes' if report['fits'] else 'no'}, {report['spare'] / GIB:.2f} spare",
        "PFLOP of a step": f"{report['flops'] / 1e15:.2f}",
        **{kind: f"{sent['count']:,}, {sent['bytes'] / GIB:.2f} GiB" for kind, sent in report["collectives"].items()},
        **{f"at least, by {what}": f"{1000 * seconds:.1f} ms" + " *" * (what == report["bottleneck"]) for what, seconds in least.items()},
        "tokens a second, at most": f"{report['tokens_a_second_at_most'] / 1e6:.1f} M",
    }


def table(columns: Mapping[str, Mapping[str, str]]) -> str:
    names = list(dict.fromkeys(name for rows in columns.values() for name in rows))
    lines = [["", *columns], ["---"] * (1 + len(columns)), *([name, *(rows.get(name, "") for rows in columns.values())] for name in names)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(chosen: Sequence[str]) -> None:
    reports = {name: compiled(words) for name, words in RUNS.items() if not chosen or name in chosen}
    print(table({name: rows(report) for name, report in reports.items()}))
    if not chosen:
        print("\n" + table({name: {"processor seconds": f"{compiled(words)['processor']:.0f}"} for name, words in LAYERS.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
