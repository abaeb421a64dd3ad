"""Segmenters: where words, phrases and entities begin in a text that does not tell by its spaces (windows.Segmented).

A segmenter is a frozen dataclass that gives the units of a text, in order; its repr, part of a cache's key, names all that decides them: of
a file what it holds, not where it lies. What is written otherwise than plain text (words with spaces between, word/tag) has a
`read`: document, counts -> the plain text, which the vocabulary sees, and column -> the characters of it at which units begin.
"""
import collections
import functools
import hashlib
import importlib.metadata
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ptmjax.types import UserError

CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"  # BERT's: each a piece
_CHINESE = re.compile(f"[{CJK}]")
_RUN = re.compile(rf"\s+|[^\W_{CJK}]+|.", re.S)


def runs(text: str) -> list[str]:
    """Where nothing better is known: letters and digits that stand together, each Chinese character, each other one."""
    return _RUN.findall(text)


def digest(path: Path) -> str:
    """Of a file's bytes; of one that cannot be read a word that says so: who uses it says more."""
    try:
        about = path.stat()
        return _digest(path, about.st_mtime_ns, about.st_size)
    except OSError:
        return "unreadable"


@functools.lru_cache
def _digest(path: Path, changed: int, size: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


# ------------------------------------------------------------------ jieba
@dataclass(frozen=True, repr=False)
class Jieba:
    """The words of jieba (the extra "zh"). dictionary: a file of its own format in place of jieba's; hmm: words that it lacks are guessed.
    Nothing is printed, and nothing is written to the folder for temporary files, as jieba does by itself."""

    dictionary: str | None = None
    hmm: bool = True

    def __repr__(self) -> str:
        return f"Jieba({self._held}, hmm={self.hmm})"

    @property
    def _held(self) -> str:
        """Of jieba's rules, and of the dictionary."""
        spec = importlib.util.find_spec("jieba")
        if spec is None:
            return "missing"
        own = Path(spec.origin).parent / "dict.txt"
        return f"{importlib.metadata.version('jieba')}, {digest(Path(self.dictionary) if self.dictionary else own)!r}"

    def __call__(self, text: str) -> list[str]:
        return _jieba(self.dictionary).lcut(text, HMM=self.hmm)

    def tagged(self, text: str) -> list[tuple[str, str]]:
        """(word, part of speech); words that the dictionary lacks are guessed otherwise here, as jieba.posseg does."""
        return _tagged(self.dictionary, self.hmm, text)


@functools.lru_cache(maxsize=2)
def _jieba(dictionary: str | None):
    """A jieba.Tokenizer with its dictionary read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own syntax
            import jieba
    except ImportError as e:
        raise UserError('the segmenter Jieba needs the package jieba: pip install "ptmjax[zh]"') from e
    try:
        made = jieba.Tokenizer(dictionary or jieba.DEFAULT_DICT)
        made.FREQ, made.total = made.gen_pfdict(made.get_dict_file())  # what initialize() does, but for its cache file and its messages
    except (OSError, ValueError) as e:
        raise UserError(f"jieba's dictionary {dictionary} cannot be read ({e}): give lines of word frequency [tag]") from e
    made.initialized = True
    return made


@functools.lru_cache(maxsize=2)
def _tagger(dictionary: str | None):
    words = _jieba(dictionary)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jieba.posseg
    try:
        return jieba.posseg.POSTokenizer(words)
    except ValueError as e:
        raise UserError(f"jieba's dictionary {dictionary} has no tags ({e}): give lines of word frequency tag") from e


@functools.lru_cache(maxsize=4)  # phrases and entities ask for the same text
def _tagged(dictionary: str | None, hmm: bool, text: str) -> list[tuple[str, str]]:
    return [(pair.word, pair.flag) for pair in _tagger(dictionary).lcut(text, HMM=hmm)]


# ------------------------------------------------------------------ lists of words
@dataclass(frozen=True, repr=False)
class Gazetteer:
    """The longest match from a list of words, from left to right: a file (UTF-8) of lines `word` or `word<TAB>type`. No match begins or
    ends between two letters or digits, other than Chinese characters.

    types: take those of these types alone; (): all. between: the segmenter of what no entry covers; None: runs(). lower: the list is in
    lower case with single spaces, and matches capitals and any other space, such as the end of a line, too.
    """

    path: str
    types: tuple[str, ...] = ()
    between: Callable[[str], Iterable[str]] | None = None
    lower: bool = False

    def __post_init__(self):
        object.__setattr__(self, "types", tuple(self.types))  # gin gives a list

    def __repr__(self) -> str:
        return f"Gazetteer({digest(Path(self.path))!r}, types={self.types}, between={self.between!r}, lower={self.lower})"

    def __call__(self, text: str) -> list[str]:
        words, lengths = _entries(self.path, self.types)
        between, found, at, begin = self.between or runs, [], 0, 0
        seen = "".join(map(_lower, text)) if self.lower else text
        apart = lambda i: not 0 < i < len(text) or not _meet(text[i - 1], text[i])
        while at < len(text):
            here = lengths.get(seen[at], ()) if apart(at) else ()
            n = next((n for n in here if seen[at : at + n] in words and apart(at + n)), 0)
            if not n:
                at += 1
                continue
            found += [*(between(text[begin:at]) if begin < at else ()), text[at : at + n]]
            at = begin = at + n
        return found + (list(between(text[begin:])) if begin < at else [])


def _lower(c: str) -> str:
    return " " if c.isspace() else low if len(low := c.lower()) == 1 else c


@functools.lru_cache(maxsize=8)
def _entries(path: str, types: tuple[str, ...]) -> tuple[frozenset[str], dict[str, list[int]]]:
    """(the words, first character -> lengths of the words that begin with it, longest first)."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as e:
        why = getattr(e, "strerror", None) or e
        raise UserError(f"word list {path} cannot be read ({why}): give UTF-8 lines of word[<TAB>type]") from e
    pairs = [line.rstrip("\r").partition("\t")[::2] for line in lines if line.strip()]
    words = frozenset(word for word, kind in pairs if word and (not types or kind in types))
    if not words:
        has = ", ".join(sorted({kind for _, kind in pairs if kind})) or "none"
        of = f" of types {', '.join(types)} (it has {has})" if types else ""
        raise UserError(f"word list {path} has no word{of}: give lines of word[<TAB>type]")
    lengths = collections.defaultdict(set)
    for word in words:
        lengths[word[0]].add(len(word))
    return words, {first: sorted(found, reverse=True) for first, found in lengths.items()}


# ------------------------------------------------------------------ texts that are already segmented
def plain(lines: Iterable[Sequence[str]]) -> tuple[str, list[int]]:
    """Lines of words as a text, nothing between words but a space where letters or digits would meet; and where each word begins."""
    text, at = "", []
    for number, words in enumerate(lines):
        made = "\n" if number else ""
        for i, word in enumerate(words):
            made += " " if i and _meet(words[i - 1][-1], word[0]) else ""
            at.append(len(text) + len(made))
            made += word
        text += made
    return text, at


def _meet(last: str, first: str) -> bool:
    return last.isalnum() and first.isalnum() and not (_CHINESE.match(last) or _CHINESE.match(first))


@dataclass(frozen=True)
class Spaced:
    """How a text is written whose words have spaces between them, as LTP and other segmenters give it. The vocabulary sees none of them,
    but one between two words of letters or digits ("New York"). Marks words."""

    columns = ("words",)

    def read(self, document: str, counts: collections.Counter) -> tuple[str, dict[str, list[int]]]:
        text, at = plain([line.split() for line in document.split("\n")])
        return text, {"words": at}
