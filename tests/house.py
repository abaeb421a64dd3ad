"""The house measured: files, lines, longest function, calls from the command line to the cross entropy; with what the tests told."""
import ast
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOPS = ["cli.main.main", "cli.train.run", "training.loop.train", "training.loop.run_stage", "training.step.make_step.step",
        "training.step.micro_loss.loss", "objectives.base.Encoding.losses", "objectives.token.Mlm.losses", "models.network.Network.nll",
        "models.heads.VocabularyHead.nll", "types.cross_entropy"]

SYSTEMS = ["bert", "lstm", "cbow", "xlnet", "distil", "t5", "electra"]


def functions(tree: ast.AST, prefix: str):
    """(dotted name, lines, parameters) of every function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{prefix}.{node.name}"
            if isinstance(node, ast.FunctionDef):
                a = node.args
                yield name, node.end_lineno - node.lineno + 1, len(a.posonlyargs + a.args + a.kwonlyargs) - (a.args[:1] != [] and a.args[0].arg == "self")
            yield from functions(node, name)
        else:
            yield from functions(node, prefix)


def house() -> dict:
    files = {p.relative_to(ROOT): p.read_text(encoding="utf-8") for d in ("ptmjax", "tasks") for p in (ROOT / d).rglob("*.py")}
    lines = {str(p): text.count("\n") for p, text in files.items()}
    found = [f for p, text in files.items() for f in functions(ast.parse(text), ".".join(p.with_suffix("").parts).removeprefix("ptmjax."))]
    known = {name for name, _, _ in found}
    missing = [hop for hop in HOPS if hop not in known]
    if missing:
        raise SystemExit(f"no longer on the way from the command line to the cross entropy: {missing}")
    top = lambda items, n=3: dict(sorted(items, key=lambda x: -x[1])[:n])
    tests = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8").count("\n") for p in (ROOT / "tests").rglob("*.py")}
    return {"files": len(lines), "lines": sum(lines.values()), "longest_files": top(lines.items()),
            "longest_functions": top([(n, size) for n, size, _ in found]), "most_parameters": top([(n, k) for n, _, k in found]),
            "test_files": len(tests), "test_lines": sum(tests.values()), "gin_lines": {p.name: p.read_text().count("\n") for p in (ROOT / "gin").glob("*.gin")},
            "hops": HOPS, "awkward_systems_lines": {name: tests[f"tests/systems/{name}.py"] for name in SYSTEMS}}


if __name__ == "__main__":
    told = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    named = {f"{t['test'].rpartition('::')[2]}: {t['name']}": t["value"] for t in told}
    Path(sys.argv[2]).write_text(json.dumps({"house": house(), "tests": named}, indent=1) + "\n")
    worst = {}  # of the two ways of compiling that --all runs
    for name, x in ((t["name"], t["value"]) for t in told if t["name"].startswith("parity | ")):
        worst[name] = max(x, worst.get(name, x))
    rows = [f"| {name.removeprefix('parity | ')} | {x:.1e} |" for name, x in sorted(worst.items())]
    print("\n".join(["| system | equal to transformers in | greatest relative difference |", "|---|---|---|", *rows]))
