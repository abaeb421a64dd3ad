"""Pre-training tasks on the shipped English text. The number in a name is the length of a row.

mlm: masked tokens; wwm: masked whole words; pmi: masked collocations and words (PMI-Masking); span: SpanBERT's masked spans; nsp: masked
next-sentence pairs; pairs, order, three: the same masks with two segments that follow each other, sentence order, three ways; wwm_nsp:
nsp with whole words; sop: order with ALBERT's n-grams; struct: StructBERT's shuffled runs and three ways; unilm: UniLM's four patterns;
rtd: the input of ELECTRA's generator; spans: T5's span corruption. In byte-level BPE, RoBERTa's formats: full, doc: masked tokens in rows
of whole sentences, which cross documents or do not; segment_pair, sentence_pair: next sentence of two segments, or of two sentences.
Blocks under 8 tokens are dropped.
"""
from dataclasses import replace

from ptmjax.tasks.corpora import EN_PD_4096, EN_PD_4096_SENTINELS, EN_PD_BYTEBPE_4096, EN_PD_COLLOCATIONS, EN_PD_SMALL

from ptmjax.data.choices import Ngrams, Tokens, Words, WordSpans, inverse
from ptmjax.data.masking import Masking
from ptmjax.data.pairs import Pairs
from ptmjax.data.patterns import Patterns
from ptmjax.data.registry import register
from ptmjax.data.segmenters import Gazetteer
from ptmjax.data.shuffling import Shuffled
from ptmjax.data.spans import Spans
from ptmjax.data.task import Task
from ptmjax.data.windows import Blocks, FullSentences, Joined, Segmented, Sentences


def _blocks(name: str, masking: Masking, words: Gazetteer | None = None) -> Task:
    """One block of a document a row."""
    cut = Blocks(masking.length - 2, minimum=8)
    cut = Segmented(cut, words) if words else cut
    return Task(f"en_pd_{name}_{masking.length}", EN_PD_SMALL, EN_PD_4096, cut, masking, masking.readout())


def _pairs(name: str, length: int, pairs: Pairs | Shuffled | Patterns) -> Task:
    """Records of twice a row, so that both kinds of pairs can fill it (pairs.Pairs)."""
    return Task(f"en_pd_{name}_{length}", EN_PD_SMALL, EN_PD_4096, Sentences(2 * (length - 3), minimum=8), pairs, pairs.readout())


def _sentences(name: str, cut: type[FullSentences] | type[Sentences], length: int, cap: int) -> Task:
    """Whole sentences a row."""
    masking = Masking(EN_PD_BYTEBPE_4096, length, cap=cap, types=True)
    return Task(f"en_pd_{name}_{length}", EN_PD_SMALL, EN_PD_BYTEBPE_4096, cut(length - 2, minimum=8), masking, masking.readout())


def _spans(inputs: int) -> Task:
    spans = Spans(EN_PD_4096_SENTINELS, inputs)
    return Task(f"en_pd_spans_{inputs}", EN_PD_SMALL, EN_PD_4096_SENTINELS, Joined(spans.raw, minimum=8), spans, spans.readout())


for _length, _cap in ((64, 10), (128, 20), (512, 77)):
    register(_blocks("mlm", Masking(EN_PD_4096, _length, cap=_cap, types=True)))
    _masking = Masking(EN_PD_4096, _length, cap=_cap, types=True, choice=Words())
    register(_blocks("wwm", _masking))
    register(_blocks("pmi", _masking, Gazetteer(EN_PD_COLLOCATIONS, lower=True)))
    register(_blocks("rtd", Masking(EN_PD_4096, _length, mask=0.85, random=0.0, cap=_cap, types=True)))
    register(_blocks("span", Masking(EN_PD_4096, _length, types=True, choice=WordSpans(), each="unit", corpus=True, bounds=True)))
    _masking, _whole = (Masking(EN_PD_4096, _length, cap=_cap, choice=choice) for choice in (Tokens(), Words()))
    register(_pairs("nsp", _length, Pairs(_masking)))
    register(_pairs("wwm_nsp", _length, Pairs(_whole)))
    for _name, _other, _swapped in (("pairs", 0.0, 0.0), ("order", 0.0, 0.5), ("three", 1 / 3, 1 / 3)):
        register(_pairs(_name, _length, Pairs(_masking, other=_other, swapped=_swapped)))
    register(_pairs("sop", _length, Pairs(replace(_masking, choice=Ngrams(inverse(3))), other=0.0, swapped=0.5)))
    register(_pairs("struct", _length, Shuffled(Pairs(_masking, other=1 / 3, swapped=1 / 3))))
    register(_pairs("unilm", _length, Patterns(Pairs(replace(_masking, choice=Ngrams((0.8, 0.1, 0.1), words=False))))))
    register(_sentences("full", FullSentences, _length, _cap))
    register(_sentences("doc", Sentences, _length, _cap))
    for _name, _alone in (("segment_pair", False), ("sentence_pair", True)):
        _paired = Pairs(Masking(EN_PD_BYTEBPE_4096, _length, cap=_cap), alone=_alone)
        register(replace(_pairs(_name, _length, _paired), vocabulary=EN_PD_BYTEBPE_4096))
for _inputs in (16, 64, 128, 512):
    register(_spans(_inputs))
