"""BERT's WordPiece vocabularies, from the files that published models come with.

V pieces, n tokens.
"""
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from etils import epath
from tokenizers import decoders, normalizers, pre_tokenizers

from ptmjax.data import tokenizer
from ptmjax.data.vocabulary import Listed
from ptmjax.types import UserError

UNK = "[UNK]"
SYMBOLS = frozenset({"[PAD]", UNK, "[CLS]", "[SEP]", "[MASK]"})
LONGEST = 100  # characters of a word, a longer one is unk: as transformers has it, so that both give equal ids; BERT's own code has 200
_UNUSED = re.compile(r"\[unused\d+\]")


class WordPiece(Listed):
    """BERT's vocab.txt (a piece a line) or a tokenizer.json with a WordPiece model; read at first use, pickled as its path.

    Args:
        lower: of a vocab.txt: whether case is folded, as the uncased models do (None: yes).
        strip_accents: of a vocab.txt: whether accents are stripped (None: where case is folded, as BERT does).
            A tokenizer.json says both itself, so it takes None alone.

    [PAD], [UNK], [CLS], [SEP], [MASK] (None where the file lacks one; [UNK] must be there), the [unusedN] and what a
    tokenizer.json adds to its model are special; all of them are plain text in a text, which BERT's own tokeniser reads as symbols.
    """

    def __init__(self, path: str, lower: bool | None = None, strip_accents: bool | None = None):
        self.path, self.lower, self.strip_accents = str(path), lower, strip_accents
        if self._given and self._is_json:
            raise UserError(f"vocabulary {self.path} says itself whether case is folded and accents are stripped: leave "
                            f"{' and '.join(self._given)} out, or give the vocab.txt")

    def __getstate__(self) -> dict:
        return {"path": self.path, "lower": self.lower, "strip_accents": self.strip_accents}  # worker processes read the file again

    def __repr__(self) -> str:
        return f"WordPiece({', '.join([repr(self.path), *(f'{name}={x}' for name, x in self._given.items())])})"

    @property
    def _given(self) -> dict[str, bool]:
        return {name: x for name in ("lower", "strip_accents") if (x := getattr(self, name)) is not None}

    @property
    def _is_json(self) -> bool:
        return self.path.endswith(".json")

    @property
    def _folds(self) -> tuple[bool, bool]:
        """Of a vocab.txt: whether case is folded, and accents are stripped."""
        lower = self.lower is not False
        return lower, lower if self.strip_accents is None else self.strip_accents

    @functools.cached_property
    def _bytes(self) -> bytes:
        try:
            return epath.Path(self.path).read_bytes()
        except OSError as e:
            raise UserError(f"vocabulary {self.path} cannot be read ({e.strerror or e}): give a vocab.txt or tokenizer.json") from e

    @functools.cached_property
    def _file(self) -> tuple[dict, dict[int, str]]:
        """(a tokenizer.json without symbols and template, what is added to its model: id -> piece)."""
        try:
            text = self._bytes.decode()
            held = json.loads(text) if self._is_json else _from_lines(text, *self._folds)
            if held["model"]["type"] != "WordPiece":
                raise UserError(f"vocabulary {self.path} holds a {held['model']['type']} model, not a WordPiece one")
            added = {int(x["id"]): x["content"] for x in held.get("added_tokens") or ()}
            known = UNK in held["model"]["vocab"]
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as e:
            raise self._wrong() from e
        if not known:  # or the file is empty
            raise self._wrong()
        return held | {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}, added

    def _wrong(self) -> UserError:
        return UserError(f"vocabulary {self.path} is not a WordPiece vocabulary with [UNK]: give BERT's vocab.txt or a tokenizer.json")

    @functools.cached_property
    def _model(self) -> tokenizers.Tokenizer:
        held, _ = self._file
        try:
            return tokenizers.Tokenizer.from_str(json.dumps(held))
        except Exception as e:  # the library has no narrower class
            raise self._wrong() from e

    @functools.cached_property
    def fingerprint(self) -> str:
        lower, strip = self._folds
        how = b"" if self._is_json else (b" lower" if lower else b" cased") + (b"" if strip == lower else b" accents apart")
        return hashlib.sha256(self._bytes + how).hexdigest()

    @functools.cached_property
    def pad(self) -> int | None:
        return self._id("[PAD]")

    @functools.cached_property
    def unk(self) -> int | None:
        return self._id("[UNK]")

    @functools.cached_property
    def special(self) -> frozenset[int]:
        odd = (id for id, piece in enumerate(self._pieces) if not piece or piece in SYMBOLS or _UNUSED.fullmatch(piece))
        return frozenset((*odd, *self._file[1]))

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        return np.array([not piece.startswith("##") for piece in self._pieces])

    def places(self, text: str) -> np.ndarray:
        return np.array([begin for begin, _ in self._model.encode(text, add_special_tokens=False).offsets], np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        words = []
        for id in map(int, ids):
            piece = self.piece(id if 0 <= id < self.size and id != self.pad else self.unk)
            if piece.startswith("##") and words:
                words[-1] += piece[2:]
            else:
                words.append(piece)
        return " ".join(words)

    def starts(self, ids: np.ndarray) -> np.ndarray:
        return self._starts[ids]

    def save(self, folder: Path, before: Sequence[str], after: Sequence[str], inputs: Sequence[str], between: Sequence[str] = ()) -> None:
        held, _ = self._file
        made = tokenizers.Tokenizer.from_str(self._bytes.decode() if self._is_json else json.dumps(held))
        made.no_truncation()
        made.no_padding()
        made.decoder = decoders.WordPiece()
        symbols = {name: self.piece(id) for name, id in self.symbols.items()}
        folds = {} if self._is_json else {"do_lower_case": self._folds[0]}
        folds |= {} if self.strip_accents is None else {"strip_accents": self.strip_accents}
        special = [piece for piece in self._pieces if piece in SYMBOLS]
        tokenizer.write(folder, made, symbols, special, before, after, inputs, between, **folds)
        if not self._is_json:
            (folder / "vocab.txt").write_bytes(self._bytes)


def _from_lines(text: str, lower: bool, strip_accents: bool) -> dict:
    """What a tokenizer.json of BERT would say, from the lines of a vocab.txt."""
    vocabulary = {line.removesuffix("\r"): id for id, line in enumerate(text.removesuffix("\n").split("\n"))}
    model = tokenizers.models.WordPiece(vocabulary, unk_token=UNK, max_input_chars_per_word=LONGEST)
    made = tokenizers.Tokenizer(model)
    made.normalizer, made.pre_tokenizer = normalizer(lower, strip_accents), pre_tokenizer()
    return json.loads(made.to_str())


def normalizer(lower: bool, strip_accents: bool) -> normalizers.Normalizer:
    """BERT's: control characters out, spaces around Chinese ones."""
    return normalizers.BertNormalizer(lowercase=lower, strip_accents=strip_accents)


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """BERT's: words between white space, punctuation apart."""
    return pre_tokenizers.BertPreTokenizer()
