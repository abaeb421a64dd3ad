"""One train step of ours against transformers in PyTorch, in turn on the same machine: `python -m tests.bench.train_step`.

Forward, backward, clip, AdamW, dropout .1, float32, random ids. See README.md beside for what the columns mean.
"""
import argparse
import json
import os
import platform
import statistics
import time

from tests.bench.systems import SYSTEMS, tiny
from tests.bench.timing import needs, ratio, table, take_cores, told
from tests.bench.worker import Worker

WARM = 3  # steps before the clock
REST = 0.05  # seconds between two turns: threads of the side before go to sleep
GEMM = (1024, 1536, 2048)
WAYS = {"ours": "ours", "as it comes": "theirs", "tuned": "theirs"}  # contestant -> whose process


def measure(name: str, repeat: int, threads: int, small: bool) -> dict:
    """All numbers of one system. The memory of the peer's two ways is that of two more processes, one way each."""
    start = lambda side: Worker(side, name, threads, small)
    with start("ours") as ours, start("theirs") as theirs:
        whose = {"ours": ours, "theirs": theirs}
        about = {side: worker.call("about") for side, worker in whose.items()}
        for way, side in WAYS.items():
            for _ in range(WARM):
                whose[side].call("step", way)
        peaks = {"ours": ours.call("peak")}
        seconds, rates = {way: [] for way in WAYS}, {side: {n: [] for n in sizes(small)} for side in whose}
        for _ in range(repeat):
            for way, side in WAYS.items():
                time.sleep(REST)
                whose[side].call("step", way)  # meets memory that the side before gave back, which no training does
                seconds[way].append(whose[side].call("step", way))
            for side, worker in whose.items():
                time.sleep(REST)
                for n in sizes(small):
                    rates[side][n].append(worker.call("gemm", n))
    for way in ("as it comes", "tuned"):
        with start("theirs") as worker:
            for _ in range(WARM):
                worker.call("step", way)
            peaks[way] = worker.call("peak")
    return summary(name, small, seconds, rates, peaks) | {"about": about}


def sizes(small: bool) -> tuple[int, ...]:
    return (64,) if small else GEMM


def summary(name: str, small: bool, seconds: dict, rates: dict, peaks: dict) -> dict:
    system = tiny(SYSTEMS[name]) if small else SYSTEMS[name]
    gemm = {side: max(statistics.median(found) for found in by.values()) for side, by in rates.items()}
    median = {way: statistics.median(s) for way, s in seconds.items()}
    flops = system.flops()
    return {
        "system": name, "tokens_a_step": system.tokens, "gflop_a_step": flops / 1e9, "gemm_gflop_s": gemm,
        "tokens_per_s": {way: system.tokens / s for way, s in median.items()},
        "ratio": {way: ratio(seconds["ours"], seconds[way]) for way in WAYS if way != "ours"},
        "gemm_share": {way: flops / 1e9 / s / gemm[WAYS[way]] for way, s in median.items()},
        "peak_gib": peaks, "seconds": seconds, "gemm_gflop_s_by_size": rates,
    }


def lines(found: dict) -> list[list[str]]:
    """Three rows of the table."""
    return [[found["system"], "ours" if way == "ours" else f"HF {way}", f"{found['tokens_per_s'][way]:,.0f}",
             told(found["ratio"][way]) if way in found["ratio"] else "",
             f"{100 * found['gemm_share'][way]:.0f} % of {found['gemm_gflop_s'][WAYS[way]]:.0f}",
             f"{found['about']['ours']['compile_s']:.1f}" if way == "ours" else "",
             f"{found['peak_gib'][way]:.2f}", "" if way == "ours" else f"{found['peak_gib']['ours'] / found['peak_gib'][way]:.2f}"] for way in WAYS]


HEAD = ["system", "contestant", "tokens/s", "ours / it (quartiles)", "share of its GEMM, GFLOP/s", "compile s", "peak GiB", "ours / it"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS), metavar="NAME", help=", ".join(SYSTEMS))
    parser.add_argument("--repeat", type=int, default=11, help="turns, one step of each contestant a turn (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="cores for either side (default: all that this process may use)")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that it runs")
    parser.add_argument("--json", metavar="FILE", help="all numbers, every turn's among them")
    args = parser.parse_args()
    needs("torch", "transformers")
    threads = take_cores(args.threads)
    print(f"{platform.processor() or platform.machine()}, {threads} of {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    found = []
    for name in args.systems:
        found.append(measure(name, args.repeat, threads, args.tiny))
        print(f"\n{table(HEAD, lines(found[-1]))}", flush=True)
    print(f"\nall of them, {args.repeat} turns\n{table(HEAD, [line for one in found for line in lines(one)])}")
    print(*(f"{side}: {about['library']}; {about['threads']}" for side, about in found[0]["about"].items()), sep="\n")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"repeat": args.repeat, "threads": threads, "tiny": args.tiny, "load": os.getloadavg(), "systems": found}, file, indent=1)


if __name__ == "__main__":
    main()
