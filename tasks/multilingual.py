"""Pre-training tasks on the shipped English and Chinese text. The number in a name is the length of a row.

en_zh_mlm: XLM's masked tokens on streams of sentences, a language a row, languages at exponent .7; tlm: a text and its translation,
masked; mlm_tlm: rows of both, one to one. en_zh_nsp: multilingual BERT's pairs, exponent .7. en_zh_plain: XLM-R's masked tokens on
streams of sentences, exponent .3, without numbers of languages. Each mixture (a task a language) shares the split of the lines.
"""
from dataclasses import replace

from ptmjax.tasks.corpora import EN_ZH, EN_ZH_4096

from ptmjax.data.masking import Masking
from ptmjax.data.pairs import Pairs
from ptmjax.data.registry import register
from ptmjax.data.task import Mixture, Task
from ptmjax.data.translation import Column, Lines, Monolingual, Parallel, Tlm
from ptmjax.data.windows import Sentences

LANGUAGES = ("en", "zh")


def _task(name: str, cut, corruption) -> Task:
    return Task(name, EN_ZH, EN_ZH_4096, cut, corruption, corruption.readout(), style="line")


def _each(kind: str, length: int, cut, corruption, exponent: float) -> Mixture:
    """A task a language; corruption: the number of a language -> that of its task."""
    tasks = [_task(f"en_zh_{kind}_{name}_{length}", Column(cut, number), corruption(number)) for number, name in enumerate(LANGUAGES)]
    return Mixture(f"en_zh_{kind}_{length}", tuple(tasks), exponent=exponent)


for _length, _cap in ((64, 10), (128, 20), (256, 38), (512, 77)):
    _masking, _stream = Masking(EN_ZH_4096, _length, cap=_cap), Lines(_length - 2, minimum=8)
    _typed = replace(_masking, types=True)
    _mlm = _each("mlm", _length, _stream, lambda number, m=_masking: Monolingual(m, number), 0.7)
    _tlm = _task(f"en_zh_tlm_{_length}", Parallel(_length - 4), Tlm(_masking))
    register(_mlm)
    register(_tlm)
    register(Mixture(f"en_zh_mlm_tlm_{_length}", (_mlm, _tlm), rates=(1, 1)))
    register(_each("nsp", _length, Sentences(2 * (_length - 3), minimum=8), lambda number, m=_masking: Pairs(m), 0.7))
    register(_each("plain", _length, _stream, lambda number, m=_typed: m, 0.3))
