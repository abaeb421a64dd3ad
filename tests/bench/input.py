"""Examples a second of our loader against SeqIO and transformers' collators, in turn: `python -m tests.bench.input`.

See README.md beside for what the columns mean.
"""
import argparse
import dataclasses
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.bench.timing import needs, ratio, table, take_cores, told
from tests.bench.train_step import WARM
from tests.bench.worker import Worker

ROWS = 128
DRAINED = 4  # batches before the clock of a turn: what tf.data made ahead while it was another's turn
STEPS = {"masks": "bert_4x256", "words": "bert_4x256", "spans": "t5_small"}  # whose step waits for the input
KINDS = {"masks": "mlm", "words": "wwm", "spans": "spans"}


def tasks(length: int, folder: Path, small: bool) -> dict:
    """The shipped tasks of this length; small: over the text's first documents."""
    import ptmjax.tasks  # noqa: F401  registers

    from ptmjax.data import registry, text

    found = {name: registry.read(f"en_pd_{kind}_{length}") for name, kind in KINDS.items()}
    if small:
        some = "\n\n".join(itertools.islice(text.documents(found["masks"].text), 80))
        (folder / "some.txt").write_text(some, encoding="utf-8")
        found = {name: dataclasses.replace(task, text=str(folder / "some.txt")) for name, task in found.items()}
    return found


def ours(task, cache: Path, rows: int) -> tuple[Iterator[dict], list[np.ndarray]]:
    """What loader.batches calls for each batch: records from ArrayRecord by index, corrupted; in this thread. And all records."""
    from ptmjax.data import loader, order, records

    held = records.build(task, "train", str(cache), progress=False)
    source = loader.Source(held, order.Shuffled(len(held)), task.corruption, 0, task.name)
    made = (source.examples(np.arange(s * rows, (s + 1) * rows)) for s in itertools.count())
    return made, [held[i]["tokens"] for i in range(len(held))]


def contestants(name: str, task, folder: Path, cache: Path, rows: int) -> dict[str, Iterator[dict]]:
    """Ours first."""
    from tests.bench import peers

    made, held = ours(task, cache, rows)
    v, found = task.vocabulary, {"ours, from ArrayRecord": made}
    if name == "spans":
        documents = train_documents(task)
        (folder / "lines.txt").write_text("".join(d.replace("\n", " ") + "\n" for d in documents), encoding="utf-8")
        found["SeqIO, from text"] = peers.seqio_spans(task.corruption, rows, texts=str(folder / "lines.txt"))
        found["SeqIO, from memory"] = peers.seqio_spans(task.corruption, rows, records=held)
        found["collator, Flax style"] = peers.t5_collator(task.corruption, held, rows)
        return checked(found, documents, v)
    for kind, library in (("pt", "torch"), ("np", "numpy")):
        found[f"transformers' collator, {library}"] = peers.hf_masking(v, held, task.corruption.length, rows, kind, name == "words")
    return found


def train_documents(task) -> list[str]:
    from ptmjax.data import records

    return [document for shard in records.deal(task, "train") for document in shard]


def checked(found: dict[str, Iterator[dict]], documents: list[str], v) -> dict[str, Iterator[dict]]:
    """The first batch of each, put together again, must be runs of the text's tokens: all do the same work."""
    stream = np.concatenate([v.encode(document) for document in documents]).astype(np.int32).tobytes()
    for who, batches in found.items():
        batch = next(batches)
        for tokens, targets in zip(batch["tokens"], batch["targets"]):
            if rebuilt(tokens, targets, v).tobytes() not in stream:
                raise SystemExit(f"{who}: {v.decode(rebuilt(tokens, targets, v).tolist())[:200]!r} is not in the text")
    return found


def rebuilt(tokens: np.ndarray, targets: np.ndarray, v) -> np.ndarray:
    """The text of a row, int32 [n]: each sentinel of the inputs gives way to the span that follows it in the targets."""
    ended = lambda row: row[: row.tolist().index(v.eos)]
    (told, spans), (shown, gaps) = ((row, np.flatnonzero(row >= v.size - v.sentinels)) for row in (ended(targets), ended(tokens)))
    if told[spans].tolist() != shown[gaps].tolist() or not len(spans):
        return np.array([-1], np.int32)
    pieces = [part[1:] for part in np.split(told, spans)[1:]]
    kept = np.split(shown, gaps)
    return np.concatenate([kept[0], *(x for gone, stay in zip(pieces, kept[1:]) for x in (gone, stay[1:]))]).astype(np.int32)


def turn(batches: Iterator[dict], seconds: float) -> float:
    """Seconds an example."""
    for _ in range(DRAINED):
        next(batches)
    made, begin = 0, time.perf_counter()
    while (taken := time.perf_counter() - begin) < seconds or not made:
        made += len(next(iter(next(batches).values())))
    return taken / made


def step_speed(name: str, threads: int, small: bool) -> float:
    """Tokens a second of our step of this system, measured now."""
    from tests.bench.systems import SYSTEMS, tiny

    system = tiny(SYSTEMS[name]) if small else SYSTEMS[name]
    with Worker("ours", name, threads, small) as worker:
        seconds = [worker.call("step", "ours") for _ in range(WARM + 3)][WARM:]
    return system.tokens / statistics.median(seconds)


def given(path: str) -> dict[str, float]:
    """Tokens a second of our steps, from what train_step wrote with --json."""
    return {one["system"]: one["tokens_per_s"]["ours"] for one in json.loads(Path(path).read_text())["systems"]}


def measure(found: dict[str, Iterator[dict]], repeat: int, seconds: float) -> dict[str, list[float]]:
    """Contestant -> seconds an example of each turn."""
    taken = {who: [] for who in found}
    for _ in range(repeat):
        for who, batches in found.items():
            taken[who].append(turn(batches, seconds))
    return taken


def summary(name: str, task, taken: dict[str, list[float]], speed: float) -> dict:
    """share: of a step's time, what one thread takes for its input."""
    length = task.corruption.inputs + task.corruption.targets if name == "spans" else task.corruption.length
    first, *others = taken
    median = {who: statistics.median(s) for who, s in taken.items()}
    return {"objective": name, "examples_per_s": {who: 1 / s for who, s in median.items()},
            "ratio": {who: ratio(taken[first], taken[who]) for who in others},
            "share_of_step": {who: s * speed / length for who, s in median.items()}, "step_tokens_per_s": speed, "seconds": taken}


HEAD = ["objective", "contestant", "examples/s", "ours / it (quartiles)", "share of a CPU step"]


def lines(found: dict) -> list[list[str]]:
    return [[found["objective"], who, f"{speed:,.0f}", told(found["ratio"][who]) if who in found["ratio"] else "",
             f"{100 * found['share_of_step'][who]:.2f} %"] for who, speed in found["examples_per_s"].items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=11, help="turns of every contestant (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long a turn takes at least (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="cores for the process (default: all that it may use)")
    parser.add_argument("--train", metavar="FILE", help="what train_step wrote with --json; without it our steps are measured now")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="where the records lie (default: a folder for this run)")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that it runs")
    parser.add_argument("--json", metavar="FILE", help="all numbers, every turn's among them")
    args = parser.parse_args()
    needs("torch", "transformers")
    threads = take_cores(args.threads)
    rows, all_found = 4 if args.tiny else ROWS, []
    speeds = given(args.train) if args.train else {name: step_speed(name, threads, args.tiny) for name in sorted(set(STEPS.values()))}
    with tempfile.TemporaryDirectory() as folder:
        for name, task in tasks(64 if args.tiny else 512, Path(folder), args.tiny).items():
            found = contestants(name, task, Path(folder), args.cache or Path(folder), rows)
            taken = measure(found, args.repeat, 0.0 if args.tiny else args.seconds)
            all_found.append(summary(name, task, taken, speeds[STEPS[name]]))
        print(table(HEAD, [line for found in all_found for line in lines(found)]))
    print(f"{args.repeat} turns, batches of {rows}, {threads} cores, load {os.getloadavg()[0]:.1f}; ours and the collators work in one thread, "
          f"tf.data in as many as it likes; steps: {', '.join(f'{n} {s:,.0f} tokens/s' for n, s in speeds.items())}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"repeat": args.repeat, "threads": threads, "tiny": args.tiny, "load": os.getloadavg(), "objectives": all_found}, file, indent=1)


if __name__ == "__main__":
    main()
