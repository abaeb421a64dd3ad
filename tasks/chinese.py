"""Pre-training tasks on Chinese. The number in a name is the length of a row.

zh_pd_*, on the shipped poems. mlm: masked characters; random: all of them shown as random ones, for readouts; wwm: whole words; mac:
MacBERT's, and mac_random, mac_partial, mac_mask, what it was compared with; ernie: ERNIE 1.0's three levels, each row of one
of them at random; ernie_basic, ernie_phrase, ernie_entity: pairs of one level, with next sentence. Words, phrases and entities are the
longest matches of a shipped list. Blocks under 8 tokens are dropped. ernie_released is as ERNIE's released code: whole words or, by row,
characters, each character of a word shown on its own, next sentence; but there every word is chosen at rate .15 by itself, here a budget
is filled, and how often words are, there a number beside each file, is .5.
zh_jieba_*, zh_spaced_*, zh_tagged_*, zh_dialogue_*, for texts of one's own (--data): words by jieba, or as the text marks them
(docs/chinese.md); what they name themselves are the poems, or a few lines that show how such a text looks.
"""
import dataclasses

from ptmjax.tasks.corpora import ZH_DIALOGUE, ZH_PD_4096, ZH_PD_SIMILAR, ZH_PD_SMALL, ZH_PD_UNITS, ZH_SPACED, ZH_TAGGED

from ptmjax.data.choices import Choice, Mixed, Ngrams, Tokens, Words
from ptmjax.data.dialogue import Dialogue, Turns
from ptmjax.data.masking import Masking
from ptmjax.data.pairs import Pairs
from ptmjax.data.registry import register
from ptmjax.data.segmenters import Gazetteer, Jieba, Spaced
from ptmjax.data.similar import Similar
from ptmjax.data.tagged import Entities, Phrases, Tagged
from ptmjax.data.task import Task
from ptmjax.data.windows import Blocks, Segmented, Sentences

NAMES = ("place", "person")
WORDS = Gazetteer(ZH_PD_UNITS, ("word", *NAMES))
UNITS = {"words": WORDS, "phrases": Gazetteer(ZH_PD_UNITS, ("phrase",), WORDS), "entities": Gazetteer(ZH_PD_UNITS, NAMES, WORDS)}
JIEBA = {"words": Jieba(), "phrases": Phrases(Jieba()), "entities": Entities(Jieba())}
LEVELS = {"basic": Tokens(), "phrase": Words("phrases"), "entity": Words("entities")}
MIXED = Mixed(tuple(LEVELS.values()), (1 / 3, 1 / 3, 1 / 3))  # the paper has one after the other (ernie_base.gin)
RELEASED = Mixed((Words(), Tokens()), (0.5, 0.5))


def _masking(length: int, choice: Choice, **more) -> Masking:
    return Masking(ZH_PD_4096, length, cap={64: 10, 128: 20, 512: 77}[length], types=True, choice=choice, **more)


def _blocks(name: str, masking: Masking, text: str = ZH_PD_SMALL, words=None, written=None, **how) -> None:
    cut = Blocks(masking.length - 2, minimum=8)
    cut = Segmented(cut, words, written) if words or written else cut
    register(Task(f"zh_{name}_{masking.length}", text, ZH_PD_4096, cut, masking, masking.readout(), **how))


def _pairs(name: str, pairs: Pairs, readout: Pairs | None = None, words=WORDS) -> None:
    cut = Segmented(Sentences(2 * (pairs.masking.length - 3), minimum=8), words)
    register(Task(f"zh_pd_{name}_{pairs.masking.length}", ZH_PD_SMALL, ZH_PD_4096, cut, pairs, readout or pairs.readout()))


SHOWN = {  # by MacBERT and the other arms of its ablation (Cui et al. 2020, arXiv 2004.13922, section 5.2); a tenth is kept
    "mac": dict(mask=0.0, random=0.1, similar=Similar(ZH_PD_SIMILAR, ZH_PD_4096, 0.8)),
    "mac_random": dict(mask=0.0, random=0.9),
    "mac_partial": dict(mask=0.8, random=0.1),
    "mac_mask": dict(mask=0.9, random=0.0),
}


def _mac(name: str, length: int) -> None:
    """n-grams of words, each word of one shown in its own way; sentence order. A model that has never seen [MASK] is read out with random
    characters, which tell as little, in all scored places."""
    masking = _masking(length, Ngrams((0.4, 0.3, 0.2, 0.1)), each="word", **SHOWN[name])
    hidden = dataclasses.replace(masking, random=1.0, similar=None) if not masking.mask else masking.readout()
    _pairs(name, Pairs(masking, other=0.0, swapped=0.5), Pairs(hidden, other=0.0, swapped=0.5))


for _length in (64, 128):
    _blocks("pd_mlm", _masking(_length, Tokens()))
    _blocks("pd_wwm", _masking(_length, Words()), words=WORDS)
    _blocks("pd_ernie", _masking(_length, MIXED), words=UNITS)
    for _level, _choice in LEVELS.items():
        _pairs(f"ernie_{_level}", Pairs(_masking(_length, _choice)), words=UNITS)
    _pairs("ernie_released", Pairs(_masking(_length, RELEASED)))
_hidden = _masking(64, Tokens(), mask=0.0, random=1.0)
_blocks("pd_random", _hidden)
for _length in (64, 128, 512):
    for _name in SHOWN:
        _mac(_name, _length)
    _blocks("jieba_wwm", _masking(_length, Words()), words=Jieba())
    _blocks("jieba_ernie", _masking(_length, MIXED), words=JIEBA)
    _blocks("spaced_wwm", _masking(_length, Words()), ZH_SPACED, written=Spaced(), style="line", holdout=4)
    _blocks("tagged_ernie", _masking(_length, MIXED), ZH_TAGGED, written=Tagged(), style="line", holdout=4)
    _dialogue = Dialogue(_masking(_length, Tokens()))
    register(Task(f"zh_dialogue_{_length}", ZH_DIALOGUE, ZH_PD_4096, Turns(_length - 4), _dialogue, _dialogue.readout(), holdout=4))
