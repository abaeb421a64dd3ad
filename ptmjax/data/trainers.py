"""Vocabularies trained on a text: WordPiece, characters, SentencePiece unigram and BPE, byte-level BPE. Equal lines give equal bytes, in
any process.

V size of the vocabulary.
"""
import collections
import io
import json
import logging
import zlib
from collections.abc import Callable, Iterable

import sentencepiece
import tokenizers
from etils import epath

from ptmjax.data.bytebpe import BYTES, SYMBOLS
from ptmjax.data.wordpiece import LONGEST as LONGEST_WORD
from ptmjax.data.wordpiece import UNK, normalizer, pre_tokenizer
from ptmjax.types import UserError, at_least

CONTROLS = ("[CLS]", "[SEP]", "[MASK]")
LONGEST = 1 << 16  # bytes of a line that SentencePiece's trainer accepts; its own default of 4192 drops long paragraphs
ALPHABET = 1000  # characters of a WordPiece vocabulary of an alphabetic script, as in BERT's; more for one with more common characters
BUDGET = 50_000_000  # characters of text that are learnt from


def sample(lines: Iterable[str], budget: int = BUDGET) -> list[str]:
    """The lines with text, in order; of more than `budget` characters, those whose hash lies below a bound that keeps within it."""
    kept, held, bound = [], 0, 1 << 32
    for line in lines:
        if line.strip() and (hashed := zlib.crc32(line.encode())) < bound:
            kept.append((hashed, line))
            held += len(line)
        while held > budget and len(kept) > 1:
            bound //= 2
            kept = [pair for pair in kept if pair[0] < bound] or kept[:1]
            held = sum(len(line) for _, line in kept)
    return [line for _, line in kept]


def train_sentencepiece(lines: Iterable[str], path: str, size: int, lower: bool = True, kind: str = "unigram") -> int:
    """Trains a model of at most `size` pieces, writes it to `path`, and returns how many over-long lines were left out.

    kind: "unigram" or "bpe". lower folds case (NFKC with case folding; accents stay). pad 0, unk 1, then [CLS] [SEP] [MASK]. Text
    with more than LONGEST bytes a line is left out and reported. One thread, so that equal lines give equal bytes.
    """
    at_least(1, size=size)
    kept = [line for line in lines if line.strip()]
    total = len(kept)
    kept = [line for line in kept if len(line.encode()) <= LONGEST]
    skipped = total - len(kept)
    if not kept:
        raise UserError(f"no text to train on: of {total} lines with text {skipped} have more than {LONGEST} bytes: break them")
    if skipped:
        logging.warning("%s: left out %d of %d lines, which are longer than %d bytes", path, skipped, total, LONGEST)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(kept), model_writer=model, model_type=kind, vocab_size=size, hard_vocab_limit=False,
            pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=list(CONTROLS),
            normalization_rule_name="nmt_nfkc_cf" if lower else "nmt_nfkc", character_coverage=0.9995,
            max_sentence_length=LONGEST, num_threads=1, minloglevel=2,
        )  # fmt: skip
    except RuntimeError as e:  # the library's way to say that the size and the text do not fit
        raise UserError(f"cannot train a {kind} vocabulary of {size} pieces on {len(kept)} lines: {str(e).rsplit('] ')[-1]}") from e
    epath.Path(path).write_bytes(model.getvalue())
    return skipped


def train_wordpiece(lines: Iterable[str], path: str, size: int, lower: bool = True) -> int:
    """Trains a WordPiece vocabulary of at most `size` pieces, writes it to `path` as BERT's vocab.txt, and returns how many words were
    left out because they are longer than wordpiece.LONGEST characters.

    [PAD] [UNK] [CLS] [SEP] [MASK] first, then the characters, then pieces in the order in which they were merged, of pairs that
    occur at least twice. lower folds case and strips accents, as BERT's uncased models do. Merges by count (tokenizers' trainer); its
    own alphabet comes out of a hash table, on whose order ties and ids would depend, so it is given one here.
    """
    words, skipped = _words(lines, lower)
    symbols = ["[PAD]", UNK, *CONTROLS]
    alphabet = _alphabet(words)
    if size < (least := len(symbols) + len(alphabet)):
        raise UserError(f"a wordpiece vocabulary of {size} pieces: symbols and characters of the text are {least}: give more")
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({UNK: 0}, unk_token=UNK, max_input_chars_per_word=LONGEST_WORD))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("\n", "removed")
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=[*symbols, *alphabet], min_frequency=2, show_progress=False,
        initial_alphabet=[c for c in alphabet if len(c) == 1], limit_alphabet=sum(len(c) == 1 for c in alphabet),
    )  # fmt: skip
    made.train_from_iterator(("\n".join([word] * n) for word, n in words.items()), trainer)
    pieces = made.get_vocab()
    epath.Path(path).write_text("".join(f"{piece}\n" for piece in sorted(pieces, key=pieces.get)))
    return skipped


def train_characters(lines: Iterable[str], path: str, size: int, lower: bool = True) -> int:
    """The commonest characters of a text, as BERT's vocab.txt of at most `size` pieces; returns as train_wordpiece does.

    For Chinese, of which BERT reads every character as a word. [PAD] [UNK] [CLS] [SEP] [MASK] first, then characters by how often they
    occur (of equals the earlier code point first): as they begin a word, and with ## as they go on inside one of letters or digits.
    """
    words, skipped = _words(lines, lower)
    symbols = ["[PAD]", UNK, *CONTROLS]
    if size <= len(symbols):
        raise UserError(f"a vocabulary of {size} pieces: {len(symbols)} are symbols: give more")
    first, inner = _characters(words)
    counts = first + collections.Counter({f"##{c}": n for c, n in inner.items()})
    common = sorted(counts, key=lambda piece: (-counts[piece], piece))[: size - len(symbols)]
    epath.Path(path).write_text("".join(f"{piece}\n" for piece in [*symbols, *common]))
    return skipped


def _words(lines: Iterable[str], lower: bool) -> tuple[collections.Counter, int]:
    """(how often each of BERT's words occurs, how many were left out because they are too long)."""
    words, skipped = collections.Counter(), 0
    normal, apart = normalizer(lower, lower), pre_tokenizer()
    for line in lines:
        for word, _ in apart.pre_tokenize_str(normal.normalize_str(line)):
            words[word] += 1
    for word in [w for w in words if len(w) > LONGEST_WORD]:
        skipped += words.pop(word)
    if not words:
        raise UserError(f"no text to train on: give lines with words of at most {LONGEST_WORD} characters")
    return words, skipped


def _characters(words: collections.Counter) -> tuple[collections.Counter, collections.Counter]:
    """How often each character begins a word, and goes on in one."""
    first, inner = collections.Counter(), collections.Counter()
    for word, n in words.items():
        first[word[0]] += n
        for c in word[1:]:
            inner[c] += n
    return first, inner


def _alphabet(words: collections.Counter) -> list[str]:
    """The commonest characters, as they begin a word and as they go on: ALPHABET of them, or as many as cover .9995 of the text."""
    first, inner = _characters(words)
    counts, covered, kept = first + inner, 0, set()
    for c in sorted(counts, key=lambda c: (-counts[c], c)):
        if len(kept) >= ALPHABET and covered >= 0.9995 * counts.total():
            break
        kept.add(c)
        covered += counts[c]
    return [*sorted(kept), *(f"##{c}" for c in sorted(kept & inner.keys()))]


def train_bytebpe(lines: Iterable[str], path: str, size: int, lower: bool = True) -> int:
    """Trains a byte-level BPE vocabulary of at most `size` pieces, writes it to `path` as a tokenizer.json, and returns 0: nothing is
    left out.

    <s> <pad> </s> <unk> first and <mask> last, as RoBERTa has them; between, the 256 bytes and the pieces in the order in which they
    were merged, of pairs that occur at least twice. lower folds case, which neither GPT-2 nor RoBERTa does. Merges by count (tokenizers'
    trainer), a tie by the ids of the pair, which are known here: all 256 bytes are in, so the text's own have no say.
    """
    least = len(SYMBOLS) + len(BYTES)
    if size < least:
        raise UserError(f"a bytebpe vocabulary of {size} pieces: symbols and bytes are {least}: give more")
    kept = [line for line in lines if line.strip()]
    if not kept:
        raise UserError("no text to train on: give lines with words")
    *first, mask = SYMBOLS
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.normalizer = tokenizers.normalizers.Lowercase() if lower else None
    made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size - 1, special_tokens=first, initial_alphabet=sorted(BYTES), min_frequency=2,
                                             show_progress=False)
    made.train_from_iterator(kept, trainer)
    made.add_special_tokens([tokenizers.AddedToken(mask, lstrip=True, normalized=False)])  # behind all others
    made.post_processor = tokenizers.processors.RobertaProcessing(("</s>", made.token_to_id("</s>")), ("<s>", made.token_to_id("<s>")),
                                                                  add_prefix_space=False)
    epath.Path(path).write_text(json.dumps(json.loads(made.to_str()), ensure_ascii=False, separators=(",", ":")))
    return 0


KINDS: dict[str, tuple[str, Callable[..., int]]] = {  # -> file name, (lines, path, size, lower) -> how much was left out
    "wordpiece": ("vocab.txt", train_wordpiece),
    "characters": ("vocab.txt", train_characters),
    "unigram": ("spiece.model", train_sentencepiece),
    "bpe": ("spiece.model", lambda *given: train_sentencepiece(*given, kind="bpe")),
    "bytebpe": ("tokenizer.json", train_bytebpe),
}
