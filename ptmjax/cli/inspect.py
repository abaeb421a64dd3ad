"""ptmjax inspect: what the model is fed: original, corrupted, and which places are scored."""
import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ptmjax.cli import config, own, session
from ptmjax.data.choices import Choice, Laid, Tokens
from ptmjax.data.loader import Source
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.types import UserError

HELP = "show examples of a run as the model sees them, and the rates of what was done to them"
EXAMPLES = """
ptmjax inspect --gin_file=bert_demo.gin                       # as training shows them
ptmjax inspect --gin_file=bert_demo.gin --readout             # as evaluation does
ptmjax inspect --gin_file=t5_demo.gin --data='my/*.txt'       # of your own text
"""


KNOWN = {"tokens", "targets", "weights", "segments", "positions", "types", "languages"}  # of one number a token, in our own corruptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    config.add_arguments(parser)
    own.add_arguments(parser)
    session.add_cache(parser)
    parser.add_argument("--examples", type=int, default=3, metavar="N", help="how many to show (default: %(default)s)")
    parser.add_argument("--sample", type=int, default=1000, metavar="N", help="how many to take rates over (default: %(default)s)")
    parser.add_argument("--readout", action="store_true", help="the held-out examples, as evaluation shows them")


def run(args: argparse.Namespace) -> int:
    if args.examples < 0 or args.sample < 1:
        raise UserError("--examples counts from 0, --sample from 1")
    experiment = session.experiment(args.gin_files, args.gin_bindings, own.bindings(args))
    data, console = experiment.data(args.cache)[0], Console(soft_wrap=True)
    console.print(data.told(), highlight=False, markup=False)
    for part in data.parts:
        source = part.heldout_source if args.readout else part.source
        sample = source.examples(np.arange(min(args.sample, len(source.records))))
        of = f" of {part.task.name}" * (len(data.parts) > 1)
        for i in range(min(args.examples, len(sample["index"]))):
            row = {key: x[i] for key, x in sample.items()}
            console.print(f"record {row['index']}{of}{of_row(row)}", style="dim", highlight=False)
            both, vocabulary = "decoder_segments" in row, data.task.vocabulary
            for line in shown_both(row, vocabulary) if both else shown(row, vocabulary, chosen(source, i)):
                console.print(line)
        console.print(rates(sample, data.task.vocabulary, left_out(sample, source.records, data.task.vocabulary), of))
    console.print(shapes(sample, experiment.stages[0].batch))
    return 0


class Chosen(NamedTuple):
    """What a choice did with a row: the unit that it chose at each place, or 0 [L], and where words begin, or None: single pieces [L]."""

    units: np.ndarray
    first: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Noting(Choice):
    """A choice that keeps what it did last."""

    choice: Choice
    last: list[Chosen]
    words: bool  # the records say where words begin, whether the choice reads that or not

    @property
    def rounding(self) -> str:
        return self.choice.rounding

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.choice.columns, *["words"] * self.words]))

    def units(self, rows: Laid, k: np.ndarray, keys: np.ndarray, rngs: Sequence[np.random.Generator]) -> np.ndarray:
        units = self.choice.units(rows, k, keys, rngs)
        self.last[:] = [Chosen(units[0], rows.first()[0] if "words" in rows.marks else None)]
        return units


def noting(part: object, last: list[Chosen], words: bool) -> object:
    """A corruption with every choice of units in it noting; single pieces are none."""
    if isinstance(part, Choice):
        return part if isinstance(part, Tokens) else Noting(part, last, words)
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    return dataclasses.replace(part, **{f.name: noting(getattr(part, f.name), last, words) for f in dataclasses.fields(part) if f.init})


def chosen(source: Source, i: int) -> Chosen | None:
    """What the corruption's choice did with record i; None where it chooses no units."""
    last: list[Chosen] = []
    corruption = noting(source.corruption, last, "words" in source.records[0])
    Source(source.records, source.order, corruption, source.seed, source.name, source.dupe_factor).example(i)
    return last[0] if last else None


def shown(row: Mapping[str, np.ndarray], vocabulary: Vocabulary, units: Chosen | None = None) -> list[Text]:
    """What a corruption hides and shows; of one that has no targets its tokens; below, what keys of its own say of them."""
    keys = [said(name, row, vocabulary) for name in own_keys(row, row["tokens"].shape)]
    if not {"targets", "weights"} <= row.keys():
        return [plain(row, vocabulary), *keys]
    return [original(row, vocabulary) if units is None else grouped(row, vocabulary, units), corrupted(row, vocabulary), *keys]


def of_row(row: Mapping[str, np.ndarray]) -> str:
    """What numbers of the whole row say of it: its label, pattern, ..."""
    told = {name: x for name, x in row.items() if not x.shape and name not in ("index", "start", "row_weights")}
    if "label" in told and not row["row_weights"]:
        told["label"] = "not scored"
    return "".join(f", {name} {f'{x:g}' if isinstance(x, np.generic) else x}" for name, x in told.items())


def own_keys(sample: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> list[str]:
    """Those that say something of every token and that no corruption of ours has."""
    return [name for name, x in sample.items() if name not in KNOWN and x.shape == shape]


def plain(row: Mapping[str, np.ndarray], vocabulary: Vocabulary) -> Text:
    return Text("tokens     " + " ".join(vocabulary.piece(t) for t, s in zip(row["tokens"], row["segments"]) if s > 0))


def said(name: str, row: Mapping[str, np.ndarray], vocabulary: Vocabulary) -> Text:
    """The tokens of which a key says something, and what."""
    told = [f"{vocabulary.piece(t)}={x:g} " for t, x, s in zip(row["tokens"], row[name], row["segments"]) if s > 0 and x != 0]
    return Text.assemble(f"{name:10} ", *((one, "bold yellow") for one in told))


def shown_both(row: Mapping[str, np.ndarray], vocabulary: Vocabulary) -> list[Text]:
    """The encoder's side and the targets of the decoder: sentinels in blue, words that are scored in bold."""
    first = vocabulary.size - vocabulary.sentinels
    colour = lambda t, w: "bold blue" if t >= first else "bold yellow" if w > 0 else ""
    line = lambda name, ids, weights, segments: Text.assemble(name, *((vocabulary.piece(t) + " ", colour(t, w))
                                                              for t, w, s in zip(ids, weights, segments) if s > 0))
    return [line("inputs     ", row["tokens"], np.zeros(len(row["tokens"])), row["segments"]),
            line("targets    ", row["targets"], row["weights"], row["decoder_segments"])]


def original(row: Mapping[str, np.ndarray], vocabulary: Vocabulary) -> Text:
    """The targets, scored places in bold."""
    return Text.assemble("original   ", *((vocabulary.piece(t) + " ", "bold yellow" if w > 0 else "")
                         for t, w, s in zip(row["targets"], row["weights"], row["segments"]) if s > 0))


def grouped(row: Mapping[str, np.ndarray], vocabulary: Vocabulary, chosen: Chosen) -> Text:
    """The targets, scored places in bold, the pieces of a word together, and every unit of several pieces that was chosen in brackets."""
    return Text.assemble("original   ", *_grouped(row, vocabulary, chosen))


def _grouped(row: Mapping[str, np.ndarray], vocabulary: Vocabulary, chosen: Chosen) -> Iterator[tuple[str, str]]:
    n = int((row["segments"] > 0).sum())
    units = [0, *chosen.units[:n].tolist(), 0]
    for i, (before, unit, after) in enumerate(zip(units, units[1:], units[2:])):
        apart = i + 1 == n or chosen.first is None or chosen.first[i + 1]
        opens, closes = unit > 0 and before != unit == after, unit > 0 and before == unit != after
        piece = vocabulary.piece(row["targets"][i])
        yield f"{'[' * opens}{piece}{']' * closes}{' ' * bool(apart)}", "bold yellow" if row["weights"][i] > 0 else ""


def corrupted(row: Mapping[str, np.ndarray], vocabulary: Vocabulary) -> Text:
    """The tokens: green where scored and shown as they are, red where scored and another, blue where [MASK]."""
    colour = lambda t, target, w: "" if w == 0 else "bold blue" if t == vocabulary.mask else "bold green" if t == target else "bold red"
    return Text.assemble("corrupted  ", *((vocabulary.piece(t) + " ", colour(t, target, w))
                         for t, target, w, s in zip(row["tokens"], row["targets"], row["weights"], row["segments"]) if s > 0))


def left_out(sample: Mapping[str, np.ndarray], records: Sequence[Mapping[str, np.ndarray]], vocabulary: Vocabulary) -> float:
    """The share of the records' tokens for which the rows have no place."""
    marks = sorted(vocabulary.special - {vocabulary.unk})
    text = lambda ids, segments: int(((sample[segments] > 0) & ~np.isin(sample[ids], marks)).sum())
    sides = [("tokens", "segments"), ("targets", "decoder_segments")] if "decoder_segments" in sample else [
        ("targets" if "targets" in sample else "tokens", "segments")]
    return 1 - sum(text(*side) for side in sides) / sum(int((~np.isin(records[i]["tokens"], marks)).sum()) for i in sample["index"])


def rates(sample: Mapping[str, np.ndarray], vocabulary: Vocabulary, cut: float, of: str = "") -> Table:
    """Shares of real places that are scored, and of scored ones that are masked, kept or other; padding of all; with a decoder,
    of its places; cut: left_out()."""
    decoder, everywhere = "decoder_segments" in sample, np.ones((), bool)
    real = sample["decoder_segments" if decoder else "segments"] > 0
    scored = sample["weights"] > 0 if "weights" in sample else None
    share = lambda part, whole: f"{(part & whole).sum() / max(1, (whole & np.ones_like(part)).sum()):.4f}"
    rows = [] if scored is None else [("scored, of real places", scored, real)]
    rows += [("padding, of all places", ~real, everywhere)]
    rows += [(f"{name} not 0, of real places", sample[name] != 0, real) for name in own_keys(sample, sample["tokens"].shape)]
    if decoder:
        sentinel = sample["targets"] >= vocabulary.size - vocabulary.sentinels
        rows += [("sentinels, of real places", sentinel, real),
                 ("padding, of all places of the encoder", sample["segments"] == 0, everywhere)]
    elif scored is not None and "targets" in sample:
        mask, same = sample["tokens"] == vocabulary.mask, sample["tokens"] == sample["targets"]
        rows += [("shown as [MASK], of scored", mask, scored), ("kept, of scored", same, scored),
                 ("another token, of scored", ~mask & ~same, scored)]
    table = Table("rate", f"of {len(real)} examples", title=f"rates{of}")
    for name, part, whole in rows:
        table.add_row(name.replace("[", "\\["), share(part, whole))
    table.add_row("cut off, of all tokens of the records", f"{cut:.4f}")
    return table


def shapes(sample: Mapping[str, np.ndarray], rows: int) -> Table:
    """The batch as the step gets it."""
    table = Table("key", "shape", "dtype", title="batch")
    for key, x in sample.items():
        table.add_row(key, str([rows, *x.shape[1:]]).replace("[", "\\["), str(x.dtype))
    return table
