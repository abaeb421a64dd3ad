"""Byte-level BPE (Radford et al. 2019, section 2.2), from the files that GPT-2 and RoBERTa come with.

V pieces, n tokens.
"""
import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from etils import epath
from tokenizers import decoders, models, pre_tokenizers

from ptmjax.data import tokenizer
from ptmjax.data.vocabulary import Listed
from ptmjax.types import UserError

SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # RoBERTa's
END = "<|endoftext|>"  # GPT-2's one symbol
WHOLE = "tokenizer.json"
PARTS = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}  # pieces -> merges, by their names in later and in GPT-2's own releases


def _letters() -> dict[int, str]:
    """The letter in which a piece writes each byte: itself where it is printable Latin-1, else one of those from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


LETTERS = _letters()
BYTES = {letter: byte for byte, letter in LETTERS.items()}


class ByteBPE(Listed):
    """A tokenizer.json with a byte-level BPE model, or vocab.json with merges.txt beside it (encoder.json with vocab.bpe); read at first
    use, pickled as its path.

    Args:
        path: the file, or a folder with them, of which a tokenizer.json is taken first, as transformers does.
        prefix_space: of vocab.json: whether a text that begins with no space gets one (None: no, as RoBERTa's and GPT-2's). A
            tokenizer.json says that itself, so it takes None alone.

    cls is <s>, sep and eos are </s>; of GPT-2's files <|endoftext|> is eos, and there is no other symbol. Special are the symbols and
    every piece that no merge makes and that is no byte: no text gives them, so "<mask>" in a text is plain text.
    """

    spaces = True

    def __init__(self, path: str, prefix_space: bool | None = None):
        self.path, self.prefix_space = str(path), prefix_space

    def __getstate__(self) -> dict:
        return {"path": self.path, "prefix_space": self.prefix_space}  # worker processes read the files again

    def __repr__(self) -> str:
        return f"ByteBPE({self.path!r}{'' if self.prefix_space is None else f', prefix_space={self.prefix_space}'})"

    @functools.cached_property
    def _file(self) -> tuple[dict, dict[int, str]]:
        """(a tokenizer.json without symbols and template, what is added to its model: id -> piece)."""
        held = parsed(where := found(self.path))
        try:
            if not whole(held):
                held = _from_parts(where, held, bool(self.prefix_space))
            elif self.prefix_space is not None:
                raise UserError(f"vocabulary {where} says itself whether a space is put first: leave prefix_space out, or give vocab.json")
            if held["model"]["type"] != "BPE" or not _bytewise(held["pre_tokenizer"]):
                raise UserError(f"vocabulary {where} holds a {held['model']['type']} model, not a byte-level BPE one")
            added = {int(x["id"]): x["content"] for x in held.get("added_tokens") or ()}
            lacks = BYTES.keys() - held["model"]["vocab"].keys()
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            raise e if isinstance(e, UserError) else _wrong(where) from e
        if lacks:
            raise UserError(f"vocabulary {where} lacks {len(lacks)} of the 256 bytes, whose text would be lost: give one that has them all")
        return held | {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}, added

    @functools.cached_property
    def _model(self) -> tokenizers.Tokenizer:
        held, _ = self._file
        try:
            return tokenizers.Tokenizer.from_str(json.dumps(held))
        except Exception as e:  # the library has no narrower class
            raise _wrong(found(self.path)) from e

    @functools.cached_property
    def _whole(self) -> str:
        """The one file that says all."""
        held, added = self._file
        return json.dumps(held | {"added_tokens": [{"id": id, "content": piece, "single_word": False, "lstrip": piece == "<mask>",
                                                    "rstrip": False, "normalized": False, "special": True}
                                                   for id, piece in sorted(added.items())]}, ensure_ascii=False)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of what is done, not of how it is written: of one and of two files it is the same."""
        held, added = self._file
        return hashlib.sha256(json.dumps([held, self._pieces, sorted(added)], sort_keys=True).encode()).hexdigest()

    @property
    def file(self) -> tuple[str, bytes]:
        return ".json", self._whole.encode()

    def at(self, path: str) -> "ByteBPE":
        return ByteBPE(path)

    @functools.cached_property
    def _symbols(self) -> dict[str, int | None]:
        return {piece: self._id(piece) for piece in (*SYMBOLS, END)}

    cls = property(lambda self: self._symbols["<s>"])
    sep = property(lambda self: self._symbols["</s>"])
    pad = property(lambda self: self._symbols["<pad>"])
    unk = property(lambda self: self._symbols["<unk>"])
    mask = property(lambda self: self._symbols["<mask>"])

    @property
    def eos(self) -> int | None:
        return self._symbols[END] if self.sep is None else self.sep

    @functools.cached_property
    def special(self) -> frozenset[int]:
        held, added = self._file
        made = {"".join(merge if isinstance(merge, list) else merge.split(" ")) for merge in held["model"]["merges"]}
        apart = {*SYMBOLS, END, *added.values(), ""}
        if not held["model"].get("ignore_merges"):  # then a word that is a piece is taken whole, whatever the merges
            apart |= set(self._pieces) - made - BYTES.keys()
        return frozenset(id for id, piece in enumerate(self._pieces) if piece in apart)

    @functools.cached_property
    def _raw(self) -> list[bytes | None]:
        """The bytes of each piece; None of one that stands for none."""
        return [None if id in self.special else bytes(BYTES[c] for c in piece) for id, piece in enumerate(self._pieces)]

    @functools.cached_property
    def _edges(self) -> np.ndarray:
        """bool [V, 2]: the piece begins, and ends, with white space."""
        return np.array([(raw[:1].isspace(), raw[-1:].isspace()) if raw else (False, False) for raw in self._raw])

    def places(self, text: str) -> np.ndarray:
        """A piece that begins with a space is at what follows it; one that begins amid a character, at that character."""
        made = self._model.encode(text, add_special_tokens=False)
        spaced = [self._raw[id][:1] == b" " and text[begin] == " " and end - begin > 1 for id, (begin, end) in zip(made.ids, made.offsets)]
        return np.array([begin + extra for extra, (begin, _) in zip(spaced, made.offsets)], np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """Ill-formed sequences become U+FFFD, and so does unk of a vocabulary that has none."""
        unk = b"\xff" if self.unk is None else self.piece(self.unk).encode()
        parts = []
        for id in map(int, ids):
            if not 0 <= id < self.size or id == self.pad:
                parts.append(unk)
            else:
                parts.append(self.piece(id).encode() if self._raw[id] is None else self._raw[id])
        return b"".join(parts).decode(errors="replace")

    def plain(self, id: int) -> str:
        """A piece that is no whole characters stays as it is written."""
        try:
            return (self._raw[id] or b"").decode().removeprefix(" ") or self.piece(id)
        except UnicodeDecodeError:
            return self.piece(id)

    def starts(self, ids: np.ndarray) -> np.ndarray:
        """A piece that begins with white space, or stands behind one that ends with it (a line end), begins a word.

        The first word of a text has no space before it, unless prefix_space: it begins one by its place, which the caller knows.
        """
        begins, ends = np.moveaxis(self._edges[ids], -1, 0)
        behind = np.concatenate([np.zeros_like(ends[..., :1]), ends[..., :-1]], -1)
        return begins | behind

    def save(self, folder: Path, before: Sequence[str], after: Sequence[str], inputs: Sequence[str], between: Sequence[str] = ()) -> None:
        held, added = self._file
        made = tokenizers.Tokenizer.from_str(json.dumps(held))
        made.decoder = decoders.ByteLevel()
        # The space before <mask> goes with it, as RoBERTa's: "a <mask>" is what training shows, " word" being one piece
        made.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, special=True, normalized=False)] * (self.mask is not None))
        special = [piece for id, piece in enumerate(self._pieces) if piece in (*SYMBOLS, END, *added.values()) and id != self.mask]
        tokenizer.write(folder, made, {name: self.piece(id) for name, id in self.symbols.items()}, special, before, after, inputs, between)


# ------------------------------------------------------------------ files
def found(path: str) -> epath.Path:
    """The file that a path means: of a folder tokenizer.json, or else vocab.json or encoder.json."""
    where = epath.Path(path)
    if not where.is_dir():
        return where
    there = next((where / name for name in (WHOLE, *PARTS) if (where / name).exists()), None)
    if there is None:
        raise UserError(f"vocabulary {path} is a folder with neither {WHOLE} nor {' nor '.join(PARTS)}: give one of a byte-level BPE")
    return there


def parsed(where: epath.Path) -> dict:
    """What a .json file holds; a UserError where that is no table."""
    try:
        held = json.loads(where.read_bytes())
    except OSError as e:
        raise UserError(f"vocabulary {where} cannot be read ({e.strerror or e}): give tokenizer.json, or vocab.json with merges.txt") from e
    except ValueError as e:
        raise _wrong(where) from e
    if not isinstance(held, dict):
        raise _wrong(where)
    return held


def whole(held: dict) -> bool:
    """Whether it is a tokenizer.json, and not pieces alone, of which "model" may be one."""
    return isinstance(held.get("model"), dict)


def bytewise(path: str) -> bool:
    """Whether a path (.json or a folder) is for ByteBPE to open: a folder, pieces and their ids, or a tokenizer.json with a BPE model."""
    if not (where := epath.Path(path)).is_file():
        return where.is_dir()
    try:
        held = parsed(where)
    except UserError:
        return False
    return held["model"].get("type") == "BPE" if whole(held) else bool(held) and all(type(x) is int for x in held.values())


def _wrong(where: epath.Path) -> UserError:
    return UserError(f"vocabulary {where} is not a byte-level BPE vocabulary: give GPT-2's or RoBERTa's vocab.json with merges.txt beside "
                     "it, or a tokenizer.json")


def _bytewise(pre_tokenizer: dict) -> bool:
    return any(part["type"] == "ByteLevel" for part in pre_tokenizer.get("pretokenizers", [pre_tokenizer]))


def _from_parts(where: epath.Path, vocabulary: dict, prefix_space: bool) -> dict:
    """What a tokenizer.json would say, from pieces and the merges beside them."""
    merges = next((where.parent / name for name in PARTS.values() if (where.parent / name).exists()), None)
    if merges is None:
        raise UserError(f"vocabulary {where} has no merges beside it: put its merges.txt (or vocab.bpe) there, or give a tokenizer.json")
    try:
        lines = merges.read_bytes().decode().split("\n")
        pairs = [tuple(line.removesuffix("\r").split(" ")) for line in lines if line.strip() and not line.startswith("#version")]
        made = tokenizers.Tokenizer(models.BPE(vocabulary, pairs))
    except OSError as e:
        raise UserError(f"vocabulary {merges} cannot be read ({e.strerror or e}): give the merges of {where}") from e
    except Exception as e:  # the library has no narrower class for merges of pieces that there are not
        raise UserError(f"vocabulary {merges} does not hold the merges of {where} ({str(e).splitlines()[0]}): give those") from e
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space), decoders.ByteLevel()
    return json.loads(made.to_str())
