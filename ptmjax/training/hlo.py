"""What XLA's optimised program says of a step: its collectives, each as often as it runs.

cost_analysis() takes the body of a loop once, and the layers of a stack are one loop; so the text is read here, as `as_text()` of a
compiled function gives it, on a CPU or for a TPU. S bytes, n devices of a group.
"""
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

WIDTHS = {"pred": 1, "s4": 0.5, "u4": 0.5, "f8e4m3fn": 1, "f8e5m2": 1, "bf16": 2, "c64": 8, "c128": 16}  # bytes, where no digits say them
FUSED_SCATTER = "all-reduce-scatter"  # so libtpu calls a fusion of an all-reduce of which each device keeps its part
RECEIVED = {  # bytes that a device of n receives at least, of a result of S bytes
    "all-gather": lambda size, n: size * (n - 1) / n,
    "all-reduce": lambda size, n: 2 * size * (n - 1) / n,
    "reduce-scatter": lambda size, n: size * (n - 1),
    "all-to-all": lambda size, n: size * (n - 1) / n,
    "ragged-all-to-all": lambda size, n: size * (n - 1) / n,
    "collective-permute": lambda size, n: size,
    "collective-broadcast": lambda size, n: size,
}


class Collective(NamedTuple):
    kind: str  # a key of RECEIVED
    size: int  # bytes of its result on a device
    group: int  # n
    times: int  # how often a step runs it

    @property
    def received(self) -> float:
        """Bytes that a device receives in a step, by the best algorithm there is."""
        return self.times * RECEIVED[self.kind](self.size, self.group) if self.group > 1 else 0.0


class Line(NamedTuple):
    """NAME = KIND OPCODE(rest."""

    name: str
    kind: str
    opcode: str
    rest: str
    root: bool  # of its computation: what that gives


Program = Mapping[str, list[Line]]  # computation -> its instructions


def collectives(text: str) -> tuple[list[Collective], int]:
    """Those of the whole program, and how many of its loops have no length that can be read, whose bodies count once."""
    walk = _Walk(*read(text))
    walk.computation(walk.entry, 1)
    return walk.found, walk.unknown


def by_kind(found: list[Collective]) -> dict[str, tuple[int, int]]:
    """kind -> (how many a step runs, bytes that a device receives by them)."""
    of = {kind: [c for c in found if c.kind == kind] for kind in sorted({c.kind for c in found})}
    return {kind: (sum(c.times for c in these), round(sum(c.received for c in these))) for kind, these in of.items()}


class _Walk:
    """Through the program as it runs; `times` is how often a computation does."""

    def __init__(self, program: Program, entry: str, devices: int):
        self.program, self.entry, self.devices = program, entry, devices
        self.found: list[Collective] = []
        self.unknown, self.chains = 0, set()

    def computation(self, name: str, times: int) -> None:
        for line in self.program[name]:
            kind = line.opcode.removesuffix("-start")
            if kind in RECEIVED:
                self.collective(line, kind, name, times)
            elif line.opcode == "while":
                trips = _trips(self.program, name, line)
                self.unknown += trips is None
                self.computation(_called(line, "body")[0], times * (1 if trips is None else trips))
            elif not line.opcode.endswith(("-done", "-update")):  # they name again what -start does
                for inner in _called(line, "calls", "to_apply", "branch_computations", "true_computation", "false_computation"):
                    self.computation(inner, times)

    def collective(self, line: Line, kind: str, within: str, times: int) -> None:
        """libtpu spreads one over a chain of fusions, each of which names it again."""
        chain = re.search(r"channel_id=(\d+).*chain_id=", line.rest)
        if chain and chain[1] in self.chains:
            return
        self.chains |= {chain[1]} if chain else set()
        self.found.append(_collective(line, kind, within.startswith(FUSED_SCATTER), self.devices, times))


def _collective(line: Line, kind: str, scatter: bool, devices: int, times: int) -> Collective:
    """A -start gives (operands, results, ...), but for all-reduce's, which gives its results."""
    results = _parts(line.kind)[1] if line.opcode.endswith("-start") and kind != "all-reduce" else line.kind
    group = devices if kind == "collective-permute" else _group(line.rest, devices)
    size = _bytes(results)
    if scatter and kind == "all-reduce":
        return Collective("reduce-scatter", size // group, group, times)
    return Collective(kind, size, group, times)


# ------------------------------------------------------------------ reading
def read(text: str) -> tuple[Program, str, int]:
    """(computations, the name of the first one to run, devices that run it)."""
    program, entry, lines = {}, "", []
    for raw in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.-]+) \(.*\{$", raw):
            lines = program[head[2]] = []
            entry = head[2] if head[1] else entry
        elif raw.startswith("  ") and (line := _line(raw)):
            lines.append(line)
    devices = re.search(r"num_partitions=(\d+)", text[: text.index("\n")])
    if not entry:
        raise ValueError("no ENTRY computation: this is no text of a compiled program")
    return program, entry, int(devices[1]) if devices else 1


def _line(raw: str) -> Line | None:
    named = re.match(r"\s+(ROOT )?%?([\w.-]+) = ", raw)
    if not named:
        return None
    rest = raw[named.end():]
    end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    opcode = re.match(r" ?([\w-]+)\(", rest[end:])
    return Line(named[2], rest[:end], opcode[1], rest[end + opcode.end():], named[1] is not None) if opcode else None


def _closing(text: str) -> int:
    """Where the parenthesis that text begins with is closed, and one more."""
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return at + 1
    raise ValueError(f"a parenthesis is not closed: {text[:80]}")


def _called(line: Line, *what: str) -> list[str]:
    """The computations that an instruction names under one of these attributes."""
    found = re.findall(rf"\b(?:{'|'.join(what)})=(\{{[^}}]*\}}|%?[\w.-]+)", line.rest)
    return [name for group in found for name in re.findall(r"[\w.-]+", group)]


def _parts(kind: str) -> list[str]:
    """The members of a tuple's type."""
    parts, depth, begin = [], 0, 1
    for at, c in enumerate(kind):
        depth += (c in "({[") - (c in ")}]")
        if depth == 0 or depth == 1 and c == ",":
            parts.append(kind[begin:at])
            begin = at + 1
    return parts


def _bytes(kind: str) -> int:
    """Of all arrays of a type, without the padding of a layout."""
    arrays = re.findall(r"\b([a-z]+\d*\w*)\[([\d,]*)\]", kind)
    return int(sum(_width(name) * math.prod(map(int, filter(None, shape.split(",")))) for name, shape in arrays))


def _width(name: str) -> float:
    return WIDTHS[name] if name in WIDTHS else int(re.fullmatch(r"[a-z]+(\d+)", name)[1]) / 8


def _group(rest: str, devices: int) -> int:
    """Devices of a group, from any of the three ways in which groups are written; all where none are named."""
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", rest):
        return found[1].count(",") + 1
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]", rest):
        return int(found[1])
    if found := re.search(r"replica_groups=mesh\[([^]]*)\](?:, device_ids=\([^{]*\))? \{([^}]*)\}", rest):
        axes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        named = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", found[2])  # an axis, or a part of one
        return math.prod(int(part or axes[axis]) for axis, part in named)
    return devices


# ------------------------------------------------------------------ loops
def _trips(program: Program, within: str, line: Line) -> int | None:
    """How often a loop runs: as XLA tells (on a CPU); for a TPU by its counter, where it begins at one constant, adds another and is held
    below a third. None of any other loop."""
    if told := re.search(r'known_trip_count":\{"n":"(\d+)"', line.rest):
        return int(told[1])
    before, test, body = (_Computation(program[name]) for name in (within, *_called(line, "condition"), *_called(line, "body")))
    if test.root.opcode != "compare" or "direction=LT" not in test.root.rest:
        return None
    counter, limit = _operands(test.root)
    at, given, kept = test.place(counter), before.source(_operands(line)[0]), body.root
    if at is None or not given.opcode == kept.opcode == "tuple" or (added := body.source(_operands(kept)[at])).opcode != "add":
        return None
    old, step = _operands(added)
    numbers = test.constant(limit), before.constant(_operands(given)[at]), body.constant(step)
    if body.place(old) != at or None in numbers or numbers[2] < 1:
        return None
    return max(0, -((numbers[1] - numbers[0]) // numbers[2]))  # rounded up


class _Computation:
    def __init__(self, lines: list[Line]):
        self.lines = {line.name: line for line in lines}
        self.root = next(line for line in lines if line.root)

    def source(self, name: str) -> Line:
        """The instruction of this name, or what it is a copy of."""
        line = self.lines[name]
        return self.source(_operands(line)[0]) if line.opcode in ("copy", "copy-start", "copy-done") else line

    def constant(self, name: str) -> int | None:
        line = self.source(name)
        found = re.match(r"(-?\d+)\)", line.rest)
        return int(found[1]) if line.opcode == "constant" and found else None

    def place(self, name: str) -> int | None:
        """Of what the computation is given, in the tuple that this is."""
        line = self.source(name)
        if line.opcode != "get-tuple-element" or self.source(_operands(line)[0]).opcode != "parameter":
            return None
        return int(re.search(r"\bindex=(\d+)", line.rest)[1])


def _operands(line: Line) -> list[str]:
    return re.findall(r"%([\w.-]+)", line.rest.partition(")")[0])
