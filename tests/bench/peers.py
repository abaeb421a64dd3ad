"""The peers of the input benchmark. Each is an iterator of batches, made from the same text or the same records as ours.

B rows, L length, n tokens of a text, k noise tokens of them, s spans. Span corruption is written here from Raffel et al. 2020, section
3.1.4: the installed seqio has no objective of its own (they are t5's), and transformers none for T5.
"""
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import seqio
import tensorflow as tf
import tokenizers
import transformers

from ptmjax.data.spans import Spans
from ptmjax.data.vocabulary import SentencePiece

JOINED = 128  # documents that t5's pipeline joins before it cuts


# ------------------------------------------------------------------ SeqIO
@seqio.map_over_dataset(num_seeds=2)
def corrupt(example: dict, seeds, last: int, eos: int) -> dict:
    """targets [n] -> inputs and targets with sentinels last, last - 1, ... and EOS behind; as t5's denoise, in TensorFlow."""
    tokens = example["targets"]
    n = tf.size(tokens)
    noise = tf.clip_by_value(tf.cast(tf.round(tf.cast(n, tf.float32) * 0.15), tf.int32), 1, tf.maximum(n - 1, 1))
    spans = tf.maximum(tf.cast(tf.round(tf.cast(noise, tf.float32) / 3.0), tf.int32), 1)
    lengths = tf.reshape(tf.stack([parts(n - noise, spans, seeds[0]), parts(noise, spans, seeds[1])], 1), [-1])
    begins = tf.math.unsorted_segment_sum(tf.ones_like(lengths[1:]), tf.cumsum(lengths)[:-1], n)
    hidden = tf.cumsum(begins) % 2 > 0
    end = lambda x: tf.concat([x, [eos]], 0)
    return {"inputs": end(collapsed(tokens, hidden, last)), "targets": end(collapsed(tokens, ~hidden, last))}


def parts(items, count, seed):
    """[count] sizes of a random partition: places between items cut, shuffled."""
    cut = tf.random.experimental.stateless_shuffle(tf.cast(tf.range(items - 1) < count - 1, tf.int32), seed)
    return tf.math.unsorted_segment_sum(tf.ones([items], tf.int32), tf.cumsum(tf.pad(cut, [[1, 0]])), count)


def collapsed(tokens, mask, last: int):
    """Every run of the mask as one sentinel."""
    first = mask & ~tf.concat([[False], mask[:-1]], 0)
    return tf.boolean_mask(tf.where(first, last + 1 - tf.cumsum(tf.cast(first, tf.int32)), tokens), ~mask | first)


def joined(dataset: tf.data.Dataset, raw: int) -> tf.data.Dataset:
    """Tokens of JOINED documents behind one another, cut into `raw` each; the last is shorter (pad is 0, as t5 counts on)."""
    def cut(tokens):
        flat = tf.boolean_mask(tokens, tokens > 0)
        blocks = tf.reshape(tf.pad(flat, [[0, -tf.size(flat) % raw]]), [-1, raw])
        return tf.data.Dataset.from_tensor_slices(blocks).map(lambda row: {"targets": tf.boolean_mask(row, row > 0)})

    return dataset.map(lambda example: example["targets"]).padded_batch(JOINED).flat_map(cut)


def seqio_spans(spans: Spans, rows: int, *, texts: str = "", records: Sequence[np.ndarray] = ()) -> Iterator[dict]:
    """A seqio.Task over a file of `texts` (a document a line: tokenised, joined, cut) or over `records` in memory, through seqio's
    own EncDecFeatureConverter, batched and prefetched; tf.data takes as many threads as it likes."""
    v = spans.vocabulary
    ids = seqio.SentencePieceVocabulary(v.path, extra_ids=v.sentinels)
    features = {side: seqio.Feature(ids, add_eos=False) for side in ("inputs", "targets")}
    if texts:
        source = seqio.TextLineDataSource({"train": texts})
        steps = [lambda ds: ds.map(lambda line: {"targets": line}), seqio.preprocessors.tokenize, lambda ds: joined(ds, spans.raw)]
    else:
        held = tf.ragged.constant([x.tolist() for x in records], tf.int32)
        read = lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices({"targets": held})
        source, steps = seqio.FunctionDataSource(read, ["train"]), []
    last, eos = v.size - 1, v.eos
    task = seqio.Task("peer", source=source, output_features=features, preprocessors=[*steps, lambda ds: corrupt(ds, last=last, eos=eos)])
    lengths = {"inputs": spans.inputs, "targets": spans.targets}
    dataset = task.get_dataset(lengths, "train", use_cached=False, shuffle=False, num_epochs=None, seed=0)
    dataset = seqio.EncDecFeatureConverter(pack=False)(dataset, lengths)
    for batch in dataset.batch(rows).prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
        yield {"tokens": batch["encoder_input_tokens"], "targets": batch["decoder_target_tokens"]}


# ------------------------------------------------------------------ collators
def collated(collator, features: Sequence[dict], rows: int) -> Iterator[dict]:
    """Batches of a collator over examples in memory, round and round."""
    walk = itertools.cycle(features)
    while True:
        yield collator(list(itertools.islice(walk, rows)))


def tokenizer(v: SentencePiece) -> transformers.PreTrainedTokenizerFast:
    """The pieces of the vocabulary under their own ids: all that a collator asks for."""
    pieces = {v.piece(i): i for i in range(v.size)}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(pieces, v.piece(v.unk)))
    name = v.piece
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, unk_token=name(v.unk), pad_token=name(v.pad), cls_token=name(v.cls),
                                                sep_token=name(v.sep), mask_token=name(v.mask))


def hf_masking(v: SentencePiece, records: Sequence[np.ndarray], length: int, rows: int, kind: str, whole: bool) -> Iterator[dict]:
    """DataCollatorForLanguageModeling ("pt" or "np") on lists, as `datasets` hands them over, special tokens marked beforehand.

    whole: its whole words (its class for them is gone from transformers 5); it then shows every chosen piece as [MASK], and wants
    the offsets of equally long rows, so they are padded beforehand.
    """
    features = [{"input_ids": [v.cls, *x.tolist(), v.sep], "special_tokens_mask": [1, *[0] * len(x), 1]} for x in records]
    if whole:
        for feature, x in zip(features, records):
            fill = length - len(feature["input_ids"])
            begin = np.arange(len(x)) + np.cumsum(v.starts(x))  # a gap before each word, none inside
            spots = np.pad(np.stack([begin, begin + 1], 1), [(1, 1 + fill), (0, 0)])
            feature["input_ids"] += [v.pad] * fill
            feature["special_tokens_mask"] += [1] * fill
            feature["offset_mapping"] = spots.tolist()
    collator = transformers.DataCollatorForLanguageModeling(tokenizer(v), whole_word_mask=whole, pad_to_multiple_of=length, return_tensors=kind, seed=0,
                                                            **({"mask_replace_prob": 1.0, "random_replace_prob": 0.0} if whole else {}))
    return collated(collator, features, rows)


class T5Collator:
    """Span corruption as the Flax examples of transformers lay it out: a mask a row, then whole arrays; equally long rows only."""

    def __init__(self, spans: Spans):
        self.spans, self.rng = spans, np.random.default_rng(0)

    def __call__(self, examples: Sequence[dict]) -> dict[str, np.ndarray]:
        tokens = np.array([example["input_ids"] for example in examples])
        hidden = np.stack([self.noise(tokens.shape[1]) for _ in examples])
        inputs, targets = self.collapsed(tokens, hidden), self.collapsed(tokens, ~hidden)
        shifted = np.pad(targets[:, :-1], [(0, 0), (1, 0)], constant_values=self.spans.vocabulary.pad)
        return {"tokens": inputs, "targets": targets, "decoder_tokens": shifted}

    def noise(self, n: int) -> np.ndarray:
        noise = min(max(round(n * self.spans.rate), 1), n - 1)
        count = max(1, round(noise / self.spans.mean))
        lengths = np.stack([self.parts(n - noise, count), self.parts(noise, count)], 1).ravel()
        begins = np.zeros(n, np.int8)
        begins[np.cumsum(lengths)[:-1]] = 1
        return np.cumsum(begins) % 2 == 1

    def parts(self, items: int, count: int) -> np.ndarray:
        cut = np.arange(items - 1) < count - 1
        self.rng.shuffle(cut)
        return np.bincount(np.cumsum(np.pad(cut, [(1, 0)])))

    def collapsed(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        v, first = self.spans.vocabulary, mask & ~np.pad(mask[:, :-1], [(0, 0), (1, 0)])
        shown = np.where(first, v.size - np.cumsum(first, 1), np.where(mask, -1, tokens))
        kept = shown[shown >= 0].reshape(len(tokens), -1)
        return np.pad(kept, [(0, 0), (0, 1)], constant_values=v.eos).astype(np.int32)


def t5_collator(spans: Spans, records: Sequence[np.ndarray], rows: int) -> Iterator[dict]:
    return collated(T5Collator(spans), [{"input_ids": x.tolist()} for x in records if len(x) == spans.raw], rows)
