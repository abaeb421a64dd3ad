"""Vocabularies: text to ids and back, with the special symbols that the objectives need.

V real pieces (the model may pad its tables beyond V: no id >= V is ever made here), n tokens.
"""
import abc
import copy
import functools
import hashlib
import itertools
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import sentencepiece
import tokenizers
from etils import epath

from ptmjax.data import tokenizer
from ptmjax.types import UserError, at_least


class Vocabulary(abc.ABC):
    """Ids 0..V-1. An id that a vocabulary does not have is None."""

    size: int  # V, without padding
    pad: int | None
    unk: int | None
    special: frozenset[int]  # never chosen as a target, never drawn as a replacement
    sentinels: int = 0  # how many the vocabulary has: <extra_id_0> is the last id, V-1, <extra_id_1> is V-2, ... as in T5
    fingerprint: str  # hex digest of what defines the vocabulary
    path: str | None = None  # of the one file that it is read from
    spaces: bool = False  # a space before a word is part of its piece, as it stands in the text: " dog" is not "dog"

    @abc.abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """int32 [n]; of the special ids only `unk` can occur: "[MASK]" in a text is plain text."""

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Never raises: ids outside 0..V-1, and pad, become the text of unk."""

    @abc.abstractmethod
    def piece(self, id: int) -> str:
        """The written form of one id."""

    def plain(self, id: int) -> str:
        """The written form without the mark that says whether it begins a word."""
        piece = self.piece(id)
        return piece.removeprefix("##").lstrip("\u2581") or piece

    @abc.abstractmethod
    def starts(self, ids: np.ndarray) -> np.ndarray:
        """bool [..., n]: the piece begins a word; pieces in order along the last axis."""

    def places(self, text: str) -> np.ndarray:
        """int64 [n]: at which character of the text each piece of encode(text) begins."""
        raise UserError(f"{self!r} does not tell where in a text its pieces are, as a segmenter's words need: use a WordPiece or "
                        "SentencePiece vocabulary")

    def save(self, folder: Path, before: Sequence[str], after: Sequence[str], inputs: Sequence[str], between: Sequence[str] = ()) -> None:
        """Writes the files that transformers' AutoTokenizer reads (tokenizer.write says what the names are)."""
        raise UserError(f"{self!r} has no file that transformers reads: this vocabulary cannot be exported")

    @property
    def file(self) -> tuple[str, bytes] | None:
        """(ending of its name, content) of the one file that holds it whole; None where it needs none."""
        return None if self.path is None else (epath.Path(self.path).suffix, epath.Path(self.path).read_bytes())

    def at(self, path: str) -> "Vocabulary":
        """The same, read from a copy of its file."""
        other = copy.copy(self)
        other.path = path
        return other

    def _id(self, piece: str) -> int | None:
        """The id of a symbol, None where the vocabulary lacks it; a subclass may set cls, sep and mask instead."""
        return None

    @functools.cached_property
    def cls(self) -> int | None:
        return self._id("[CLS]")

    @functools.cached_property
    def sep(self) -> int | None:
        return self._id("[SEP]")

    @functools.cached_property
    def mask(self) -> int | None:
        return self._id("[MASK]")

    @property
    def eos(self) -> int | None:
        """What ends a text."""
        return self.sep

    @property
    def symbols(self) -> dict[str, int]:
        """name -> id of those of pad, unk, eos, cls, sep and mask that there are."""
        found = {name: getattr(self, name) for name in ("pad", "unk", "eos", "cls", "sep", "mask")}
        return {name: id for name, id in found.items() if id is not None}

    @property
    def ordinary(self) -> np.ndarray:
        """int32 [V - specials]: the ids that text is made of."""
        return np.setdiff1d(np.arange(self.size, dtype=np.int32), np.array(sorted(self.special), np.int32))


class Listed(Vocabulary):
    """One that tokenizers' library encodes with, of a tokenizer.json whose model lists its pieces: a subclass gives `_file` (that, what is
    added to its model: id -> piece) and `_model`."""

    _file: tuple[dict, dict[int, str]]
    _model: tokenizers.Tokenizer

    @functools.cached_property
    def _pieces(self) -> list[str]:
        """By id; an id that the file leaves out is an empty piece, and special."""
        held, added = self._file
        named = {id: piece for piece, id in held["model"]["vocab"].items()} | added
        return [named.get(id, "") for id in range(max(named, default=-1) + 1)]

    @functools.cached_property
    def size(self) -> int:
        return len(self._pieces)

    def _id(self, piece: str) -> int | None:
        return self._pieces.index(piece) if piece in self._pieces else None

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._model.encode(text, add_special_tokens=False).ids, np.int32)

    def piece(self, id: int) -> str:
        return self._pieces[id]


class SentencePiece(Vocabulary):
    """A SentencePiece model with [CLS], [SEP] and [MASK] as control symbols; read at first use, pickled as its path.

    `sentinels` ids follow those of the model, special as well: T5's 100 after its 32000 pieces. No text gives them.
    """

    def __init__(self, path: str, sentinels: int = 0):
        at_least(0, sentinels=sentinels)
        self.path, self.sentinels = str(path), sentinels

    def __getstate__(self) -> dict:
        return {"path": self.path, "sentinels": self.sentinels}  # worker processes read the file again

    def __repr__(self) -> str:
        return f"SentencePiece({self.path!r}{f', sentinels={self.sentinels}' if self.sentinels else ''})"

    @functools.cached_property
    def _bytes(self) -> bytes:
        try:
            return epath.Path(self.path).read_bytes()
        except OSError as e:
            raise UserError(f"vocabulary {self.path} cannot be read ({e.strerror or e}): give the path of a SentencePiece model") from e

    @functools.cached_property
    def _model(self) -> sentencepiece.SentencePieceProcessor:
        proto, fault = self._bytes, None
        try:
            model = sentencepiece.SentencePieceProcessor(model_proto=proto)
        except (RuntimeError, ValueError) as e:
            fault = e
        if not proto or fault is not None or model.get_piece_size() == 0:  # of no bytes the library makes a model that fails at every call
            raise UserError(f"vocabulary {self.path} is not a SentencePiece model: `ptmjax vocab` trains one") from fault
        return model

    @functools.cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self._bytes + (b" sentinels %d" % self.sentinels if self.sentinels else b"")).hexdigest()

    @functools.cached_property
    def _pieces(self) -> int:
        return self._model.get_piece_size()

    @functools.cached_property
    def size(self) -> int:
        return self._pieces + self.sentinels

    def _id(self, piece: str) -> int | None:
        id = self._model.piece_to_id(piece)
        return id if self._model.is_control(id) else None

    @functools.cached_property
    def pad(self) -> int | None:
        return self._model.pad_id() if self._model.pad_id() >= 0 else None

    @functools.cached_property
    def unk(self) -> int:
        return self._model.unk_id()

    @functools.cached_property
    def eos(self) -> int | None:
        """The model's own (T5's </s>) or, where it has none, sep."""
        return self._model.eos_id() if self._model.eos_id() >= 0 else self.sep

    @functools.cached_property
    def special(self) -> frozenset[int]:
        m = self._model
        own = (i for i in range(self._pieces) if m.is_control(i) or m.is_unknown(i) or m.is_unused(i))
        return frozenset((*own, *range(self._pieces, self.size)))

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        return np.array([i >= self._pieces or self.piece(i).startswith("\u2581") for i in range(self.size)])

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._model.encode(text), np.int32)

    def places(self, text: str) -> np.ndarray:
        pieces = self._model.encode(text, out_type="proto").pieces
        bytes_ = np.frombuffer(text.encode(), np.uint8)
        number = np.append(np.cumsum(bytes_ & 0xC0 != 0x80) - 1, len(text))  # of each byte's character
        written = np.flatnonzero([not c.isspace() for c in text] + [True])  # a piece begins behind the space before a word
        begin, end = (number[np.array([getattr(piece, side) for piece in pieces], np.int64)] for side in ("begin", "end"))
        return np.minimum(written[np.searchsorted(written, begin)], end)

    def decode(self, ids: Iterable[int]) -> str:
        known = [i if 0 <= i < self.size and i != self.pad else self.unk for i in map(int, ids)]
        if not self.sentinels:
            return self._model.decode(known)
        runs = itertools.groupby(known, key=lambda i: i >= self._pieces)
        return " ".join(" ".join(map(self.piece, run)) if sentinel else self._model.decode(list(run)) for sentinel, run in runs)

    def piece(self, id: int) -> str:
        return f"<extra_id_{self.size - 1 - int(id)}>" if id >= self._pieces else self._model.id_to_piece(int(id))

    def starts(self, ids: np.ndarray) -> np.ndarray:
        return self._starts[ids]

    def save(self, folder: Path, before: Sequence[str], after: Sequence[str], inputs: Sequence[str], between: Sequence[str] = ()) -> None:
        (folder / "spiece.model").write_bytes(self._bytes)
        made = tokenizer.unigram(self._bytes, [self.piece(id) for id in range(self._pieces, self.size)])
        if made is None:
            logging.warning("%s: transformers' tokenizers cannot do as this model does: encode with sentencepiece instead", self.path)
        else:
            symbols = {name: self.piece(id) for name, id in self.symbols.items()}
            tokenizer.write(folder, made, symbols, map(self.piece, sorted(self.special)), before, after, inputs, between)
