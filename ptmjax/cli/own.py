"""A text of one's own in place of the one that a run's tasks name, and a vocabulary for it."""
import argparse
import collections
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ptmjax.cli import quiet
from ptmjax.data import sources, text
from ptmjax.data.bytebpe import ByteBPE, bytewise
from ptmjax.data.bytes import Bytes
from ptmjax.data.cache import keep, making
from ptmjax.data.task import Task
from ptmjax.data.trainers import KINDS, sample
from ptmjax.data.vocabulary import SentencePiece, Vocabulary
from ptmjax.data.windows import Written
from ptmjax.data.wordpiece import WordPiece
from ptmjax.types import INT32, UserError, at_least

CODE = 1  # raise it when trainers.py gives other vocabularies for the same text: they are then trained anew
STDIN = "-"


@dataclass(frozen=True)
class Own:
    """paths, style, field, holdout: as of a Task. vocabulary: a file (vocab.txt, tokenizer.json, vocab.json with merges.txt beside it,
    SentencePiece's .model), or what is trained on the text once: KIND or KIND:SIZE of wordpiece, characters, unigram, bpe, bytebpe, or
    bytes; None: unigram where the task has sentinels (T5), bytebpe where its own is (RoBERTa), else wordpiece, of as many pieces as the
    model's tables have. lower: case is folded (a .model and a .json say that themselves)."""

    paths: str | Sequence[str]
    style: str = "blank"
    field: str = "text"
    vocabulary: str | None = None
    lower: bool = True
    holdout: int = 50

    def __post_init__(self):
        at_least(2, holdout=self.holdout)

    def task(self, base: Task, size: int, cache: Path, kept: str | None = None) -> Task:
        """The task on this text. size: ids of the model's tables; kept: the file of the vocabulary, where a work folder has it."""
        if len(base.tasks) > 1:
            base.on(f"own_{base.name}", base.vocabulary)  # which a mixture refuses, before a vocabulary is trained
        paths = self.paths if isinstance(self.paths, str) else tuple(self.paths)
        given = {"text": paths, "style": self.style, "field": self.field, "holdout": self.holdout}
        sentinels = base.vocabulary.sentinels
        usual = "unigram" if sentinels else "bytebpe" if isinstance(base.vocabulary, ByteBPE) else "wordpiece"
        written = getattr(base.cut, "written", None)
        vocabulary = opened(kept, sentinels, self.lower) if kept else self.pieces(usual, sentinels, size, cache, written)
        return base.on(f"own_{base.name}", vocabulary, **given)

    def pieces(self, usual: str, sentinels: int, size: int, cache: Path, written: Written | None = None) -> Vocabulary:
        """The vocabulary, trained where it is to be and is not yet in the cache; of the kind `usual` where none is named. written: how the
        documents are, where not plain text."""
        kind, colon, number = (self.vocabulary or usual).partition(":")
        if kind == "bytes":
            if colon:
                raise UserError(f"vocabulary {self.vocabulary!r}: bytes are 256, whatever the text: write bytes alone")
            return Bytes(sentinels)
        if kind not in KINDS:
            return opened(self.vocabulary, sentinels, self.lower)
        if colon and not (number.isdecimal() and int(number) <= INT32):
            raise UserError(f"vocabulary {self.vocabulary!r}: {number!r} is no number of pieces: write {kind}:8000")
        if not KINDS[kind][0].endswith(".model") and sentinels:
            raise UserError(f"vocabulary {kind} has no sentinels, which this task needs: choose unigram, bpe or bytes")
        if not number and size <= sentinels:
            raise UserError(f"the model's tables have {size} ids, no size of a vocabulary follows: write --vocabulary={kind}:8000")
        return opened(str(self.trained(kind, int(number or size - sentinels), cache, written)), sentinels, self.lower)

    def trained(self, kind: str, size: int, cache: Path, written: Written | None = None) -> Path:
        """The file of a vocabulary of at most `size` pieces."""
        with quiet.imports():  # tfds: brings TensorFlow
            source = sources.source(self.paths, self.style, self.field)
        what = {"code": CODE, "kind": kind, "size": size, "lower": self.lower, "holdout": self.holdout}
        what |= source.key(cache / ".digests.json") | ({"written": repr(written)} if written else {})
        key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
        name, train = KINDS[kind]
        final = cache / f"vocabulary-{kind}-{key}{Path(name).suffix}"
        if not final.exists():
            print(f"training a {kind} vocabulary of at most {size:,} pieces on the text", file=sys.stderr)
            if not (lines := sample(self.lines(source, written))):
                raise UserError(f"the text has no line beside what is held out, one document in {self.holdout}: give more documents, or "
                                "say where one ends (--style=line: at every line)")
            with making(cache) as part:
                train(lines, str(part / name), size, self.lower)
                keep(part / name, final)
        return final

    def lines(self, source: sources.Source, written: Written | None = None) -> Iterator[str]:
        """Of the training split."""
        for document in source.documents(collections.Counter()):
            if text.split_of(document, self.holdout) == "train":
                plain = written.read(document, collections.Counter())[0] if written else document
                yield from plain.split("\n")


def opened(path: str, sentinels: int, lower: bool) -> Vocabulary:
    """The vocabulary in a file, by its ending, a .json by what it holds; a folder is of a byte-level BPE."""
    if path.endswith(".model"):
        return SentencePiece(path, sentinels)
    of_bytes = not path.endswith(".txt") and bytewise(path)
    if not (of_bytes or path.endswith((".txt", ".json"))):
        raise UserError(f"vocabulary {path!r} is neither a kind ({', '.join([*KINDS, 'bytes'])}) nor a .model, .txt or .json file")
    if sentinels:
        raise UserError(f"vocabulary {path} has no sentinels, which this task needs: give a SentencePiece .model")
    if of_bytes:
        return ByteBPE(path)
    return WordPiece(path, None if path.endswith(".json") else lower)


# ------------------------------------------------------------------ options
def add_text(parser: argparse._ActionsContainer, required: bool = False) -> None:
    """Options that name a text."""
    parser.add_argument("--data", nargs="+", action="extend", default=[], required=required, metavar="TEXT",
                        help="files or globs of your own text (.txt, .jsonl, .parquet; .gz, .bz2, .xz, .zst), tfds:NAME, datasets:NAME, "
                             "or - for standard input")
    parser.add_argument("--style", choices=text.STYLES, help="what ends a document of a text: a blank line (default), or every line")
    parser.add_argument("--field", metavar="NAME", help="the field of a row that is a document (default: text)")
    parser.add_argument("--holdout", type=int, metavar="N", help="one document in N is held out (default: 50)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that put a text in place of the one that a gin file's tasks name."""
    group = parser.add_argument_group("a text of your own, in place of the one that the gin file names")
    add_text(group)
    group.add_argument("--vocabulary", metavar="FILE or KIND[:SIZE]",
                        help="of --data: vocab.txt, tokenizer.json, vocab.json beside merges.txt, SentencePiece .model; or one to train: "
                             "wordpiece, characters (of Chinese), unigram, bpe, bytebpe, bytes")
    group.add_argument("--cased", action="store_true", help="of --vocabulary: keep case")


def said(args: argparse.Namespace) -> dict[str, object]:
    """The fields of an Own that the options give."""
    found = {name: getattr(args, name, None) for name in ("style", "field", "holdout", "vocabulary")}
    found["lower"] = False if args.cased else None
    return {name: value for name, value in found.items() if value is not None}


def of(args: argparse.Namespace) -> Own:
    """What the options of `ptmjax vocab` say."""
    return Own([spooled(args.cache) if path == STDIN else sources.placed(path) for path in args.data], **said(args))


def bindings(args: argparse.Namespace) -> str:
    """What the options say, as lines of a gin file; "" without --data."""
    given = said(args)
    if not args.data:
        if given:
            option = {"lower": "cased"}.get(first := next(iter(given)), first)
            raise UserError(f"--{option} is about --data, which is not given: name a text with it")
        return ""
    if STDIN in args.data and (getattr(args, "distributed", False) or getattr(args, "coordinator", None)):
        raise UserError("--data=-: each of several processes has a standard input of its own: name a file that all of them reach")
    if "vocabulary" in given and given["vocabulary"] not in (*KINDS, "bytes") and Path(given["vocabulary"]).exists():
        given["vocabulary"] = str(Path(given["vocabulary"]).absolute())
    given["paths"] = list(of(args).paths)
    head = ["from __gin__ import dynamic_registration", "from ptmjax.cli import experiment", "from ptmjax.cli import own",
            "experiment.Experiment.own = @own.Own()"]
    return "\n".join([*head, *(f"own.Own.{name} = {value!r}" for name, value in given.items()), ""])


def spooled(cache: Path) -> str:
    """Standard input as a file in the cache, named by what it holds: it is read more than once."""
    if sys.stdin is None:
        raise UserError("--data=-: standard input is closed: send a text there, or name a file")
    with making(cache) as part:
        whole = hashlib.sha256()
        with (part / "text").open("wb") as f:
            for block in blocks():
                whole.update(block)
                f.write(block)
        final = keep(part / "text", cache / f"stdin-{whole.hexdigest()[:16]}.txt")
    print(f"standard input is kept as {final}: delete it when no run is to read it again", file=sys.stderr)
    return str(final)


def blocks() -> Iterator[bytes]:
    """Of standard input."""
    try:
        while block := sys.stdin.buffer.read(1 << 20):
            yield block
    except OSError as e:
        raise UserError(f"--data=-: standard input cannot be read ({e.strerror or e}): send a text there, or name a file") from e
