"""Texts on disk to documents, train and validation split, runs of documents for the cache builder."""
import bz2
import collections
import concurrent.futures
import contextlib
import functools
import gzip
import hashlib
import json
import lzma
import os
import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from backports import zstd
from etils import epath

from ptmjax.data.cache import keep, making
from ptmjax.types import UserError

STYLES = ("blank", "line")
READERS = 8  # files of a text whose bytes are hashed at once
HEAD = 1 << 16  # bytes in which a NUL says that the file is not text
OPEN = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": zstd.open}
_FAULTS = (OSError, EOFError, lzma.LZMAError, zlib.error, zstd.ZstdError)  # gzip.BadGzipFile is an OSError


def reachable(path: str) -> str:
    """The path, which lies here or in a bucket (gs://, which TensorFlow reads); UserError for other schemes, of which it has none."""
    scheme, far, _ = path.partition("://")
    if far and scheme != "gs":
        raise UserError(f"{path}: of addresses with :// only gs:// can be used: mount what lies there and give its folder")
    if far and "**" in path:
        raise UserError(f"{path}: ** cannot be used in a bucket: name its folders")
    return path


def files(paths: str | Sequence[str]) -> list[epath.Path]:
    """The files that `paths` name, globs expanded in sorted order; UserError where one names nothing. What is there under the very
    name, such as a[1].txt, is no glob."""
    found = []
    for path in [paths] if isinstance(paths, str) else paths:
        if not path:
            raise UserError("the path of a text is empty: name a file")
        parts = epath.Path(reachable(path)).parts
        first = next((i for i, part in enumerate(parts) if re.search(r"[*?\[]", part)), None)
        if first is None or epath.Path(path).exists():
            matches = [epath.Path(path)]
        else:
            matches = matching(parts, first)
        if not matches or not matches[0].exists():
            looked = "" if "://" in str(path) or Path(path).is_absolute() else f" in {Path.cwd()}, where the command runs"
            raise UserError(f"text {path} does not exist{looked}: check the path")
        for match in matches:
            check_file(match)
        found += matches
    if not found:
        raise UserError("no text is given: name at least one file")
    return found


def check_file(path: epath.Path) -> None:
    """UserError for what is there and no file: a text is read more than once, and a pipe or a device may never end."""
    if "://" in str(path) or Path(path).is_file():  # epath's own takes all but a folder for one
        return
    raise UserError(f"text {path} is a folder: name its files ({path}/*.txt)" if path.is_dir() else
                    f"text {path} is no file (a pipe, or a device): name a file, or send it to standard input (--data=-)")


def matching(parts: Sequence[str], first: int) -> list[epath.Path]:
    """The files of a glob, sorted; `**` is any folders, of this machine alone."""
    above, pattern = parts[:first] or (".",), "/".join(parts[first:])
    if "**" not in pattern:
        return sorted(epath.Path(*above).glob(pattern))
    return [epath.Path(p) for p in sorted(Path(*above).glob(pattern)) if p.is_file()]


def digest(paths: str | Sequence[str], memo: Path | None = None) -> str:
    """sha256 of the files' bytes as they lie on disk, in order.

    memo: a file that remembers the digest of a file of this name, size and time of change, so that a large text is not
    read at every start; one that was changed within the last two seconds is not remembered, it may still be written.
    """
    whole, known, found = hashlib.sha256(), _known(memo), files(paths)
    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:  # hashlib lets other threads run
        told = dict(zip(once := dict.fromkeys(found), pool.map(functools.partial(_of_file, known), once)))
    for path in found:
        whole.update(bytes.fromhex(told[path].sha256))
    fresh = {key: sha256 for key, sha256, changed in told.values() if time.time() - changed >= 2}
    if memo is not None and fresh.items() - known.items():
        _remember(memo, known | fresh)
    return whole.hexdigest()


class _Digest(NamedTuple):
    key: str  # by which it is remembered
    sha256: str
    changed: int


def _of_file(known: Mapping[str, str], path: epath.Path) -> _Digest:
    try:
        size, changed = size_and_time(path)
        key = f"{path if '://' in str(path) else path.absolute()} {size} {changed}"
        if key in known:
            return _Digest(key, known[key], changed)
        with path.open("rb") as f:
            return _Digest(key, hashlib.file_digest(f, "sha256").hexdigest(), changed)
    except OSError as e:
        raise unreadable(path, e) from e


def size_and_time(path: epath.Path) -> tuple[int, int]:
    """Bytes, and when it was changed in whole seconds."""
    if "://" in str(path):
        about = path.stat()
        return about.length, int(about.mtime)
    about = os.stat(path)  # epath's own fails for a user without a name, as in containers
    return about.st_size, int(about.st_mtime)


def _known(memo: Path | None) -> dict[str, str]:
    try:
        known = json.loads(memo.read_text()) if memo is not None else {}
    except (OSError, ValueError, RecursionError):
        return {}
    whole = lambda x: isinstance(x, str) and re.fullmatch("[0-9a-f]{64}", x)  # any other is made anew
    return {key: x for key, x in known.items() if whole(x)} if isinstance(known, dict) else {}


def _remember(memo: Path, known: dict[str, str]) -> None:
    with contextlib.suppress(UserError), making(memo.parent) as part:  # nothing is lost but the next start's time
        (part / memo.name).write_text(json.dumps(known, indent=1))
        keep(part / memo.name, memo)


def unreadable(path: epath.Path, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return UserError(f"text {path} cannot be read ({reason}): give a readable UTF-8 text, plain or compressed")


def first_line(error: Exception | str) -> str:
    """Of what is said, to stand in a line of ours: packages append lines (gin where a call was), or say nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def check_given(texts: Sequence[str]) -> None:
    """A UserError where an argument of the command line was not UTF-8: Python holds such bytes as lone surrogates."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise UserError(f"the text {text!a} is not UTF-8: give it in that encoding") from e


def decoded(raw: bytes, faults: collections.Counter) -> str:
    """Of UTF-8, with U+FFFD for what is not."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        text = raw.decode(errors="replace")
        faults["invalid"] += text.count("\ufffd") - raw.count("\ufffd".encode())
        return text


def wellformed(document: str, faults: collections.Counter) -> str:
    """A str with U+FFFD in place of lone surrogates, which JSON can write and UTF-8 cannot."""
    try:
        document.encode()
        return document
    except UnicodeEncodeError:
        document, lone = re.subn("[\ud800-\udfff]", "\ufffd", document)
        faults["invalid"] += lone
        return document


def lines(path: epath.Path, faults: collections.Counter) -> Iterator[str]:
    """Lines of one file, split on LF alone (a lone CR, U+2028 and the like are text)."""
    try:
        with path.open("rb") as raw, OPEN.get(path.suffix, lambda f: f)(raw) as f:
            yield from _read(f, path, faults)
    except _FAULTS as e:
        raise unreadable(path, e) from e


def _read(f: BinaryIO, path: epath.Path, faults: collections.Counter) -> Iterator[str]:
    if b"\0" in f.read(HEAD):
        raise UserError(f"text {path} is binary (it holds NUL bytes): give a UTF-8 text")
    f.seek(0)
    for number, line in enumerate(f):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        yield decoded(line if number else line.removeprefix(b"\xef\xbb\xbf"), faults)


def check_style(style: str) -> None:
    if style not in STYLES:
        raise UserError(f"text style {style!r} is not known: use one of {', '.join(STYLES)}")


def documents(paths: str | Sequence[str], style: str = "blank", faults: collections.Counter | None = None) -> Iterator[str]:
    """The documents of UTF-8 texts (plain, .gz, .bz2, .xz or .zst), in order.

    Args:
        style: "blank": blank lines end a document, its lines are joined by LF; "line": every line that is not blank is one.
        faults: its "invalid" grows by the number of ill-formed byte sequences, each of which became U+FFFD.
    Raises:
        UserError: a text is missing, empty, binary (NUL in its first 64 KiB) or unreadable.
    """
    check_style(style)
    faults = collections.Counter() if faults is None else faults
    for path in files(paths):
        empty = True
        for document in _join(lines(path, faults), style):
            empty = False
            yield document
        if empty:
            raise UserError(f"text {path} is empty: give a text with at least one document")


def clean(document: str) -> str:
    """A document of a row as the lines of a file would give it: blank lines gone, a CR before an LF too; "" where none is left."""
    return "\n".join(line for raw in document.split("\n") if (line := raw.removesuffix("\r")).strip())


def _join(lines: Iterator[str], style: str) -> Iterator[str]:
    kept = []
    for line in lines:
        if line.strip():
            kept.append(line)
        if kept and (style == "line" or not line.strip()):
            yield "\n".join(kept)
            kept = []
    if kept:
        yield "\n".join(kept)


_STOP = re.compile(r"""(?<![.!?])[.!?]++["'”’»)\]]*+(?=\s)|[。！？]+["'”’»)\]」』）〉》]*""")


def sentences(document: str, spaces: bool = False) -> list[str]:
    """The sentences of a document, in order, without the space around them; nothing but space is lost. spaces: where space or the end
    of a line parts one from what comes before, it begins with a space.

    A sentence ends with its line; after . ! ? and the closing quotes and brackets behind them, where space follows; and after
    the CJK marks 。！？ and what closes behind them. Abbreviations end one too (Mr. / Smith): no list of any language is used.
    """
    found = []
    for line in document.split("\n"):
        ends = [0, *(stop.end() for stop in _STOP.finditer(line)), len(line)]
        for begin, end in zip(ends, ends[1:]):
            if sentence := line[begin:end].strip():
                apart = spaces and found and (begin == 0 or line[begin].isspace())
                found.append(f" {sentence}" if apart else sentence)
    return found


def split_of(document: str, holdout: int) -> str:
    """"validation" for about one in `holdout` documents, else "train": by content, so that duplicates never leak across."""
    return "train" if zlib.crc32(document.encode()) % holdout else "validation"


class Distinct:
    """Counts how many of any number of documents repeat an earlier one, from those whose hash lies below a bound: all of them up to
    LIMIT distinct ones, then ever fewer, so that memory stays; the share is then an estimate."""

    LIMIT = 1 << 20

    def __init__(self):
        self.seen, self.bound, self.total = collections.Counter(), 1 << 64, 0

    def add(self, document: str) -> None:
        hashed = int.from_bytes(hashlib.blake2b(document.encode(), digest_size=8).digest(), "little")
        self.total += 1
        if hashed < self.bound:
            self.seen[hashed] += 1
        self._fit()

    def merge(self, other: "Distinct") -> None:
        """As if the other's documents had been added here."""
        self.total, self.bound = self.total + other.total, min(self.bound, other.bound)
        self.seen = collections.Counter({h: n for h, n in (self.seen + other.seen).items() if h < self.bound})
        self._fit()

    def _fit(self) -> None:
        while len(self.seen) > self.LIMIT:
            self.bound //= 2
            self.seen = collections.Counter({h: n for h, n in self.seen.items() if h < self.bound})

    @property
    def duplicates(self) -> int:
        """How many documents repeat another."""
        return round(self.total * (1 - len(self.seen) / max(1, self.seen.total())))


def runs(lengths: Sequence[int], shards: int) -> np.ndarray:
    """int64 [documents]: the shard of each document: contiguous runs of about equal numbers of characters."""
    lengths = np.asarray(lengths, np.int64)
    ends = np.cumsum(lengths)
    return (ends - lengths) * shards // max(1, lengths.sum())  # below 2^63 for 9e15 characters in 1000 shards
