"""Pre-training tasks. The number in a name is the length of a row."""
from ptmjax.tasks.corpora import EN_PD_4096, EN_PD_SMALL

from ptmjax.data.adapters import register
from ptmjax.data.masking import Masking
from ptmjax.data.task import Task
from ptmjax.data.windows import Blocks


def _mlm(length: int, cap: int) -> Task:
    """BERT's masked tokens on the shipped English text; tails under 8 tokens are dropped."""
    masking = Masking(EN_PD_4096, length, cap=cap, types=True)
    return Task(f"en_pd_mlm_{length}", EN_PD_SMALL, EN_PD_4096, Blocks(length - 2, minimum=8), masking, masking.readout())


register(_mlm(64, 10))
register(_mlm(128, 20))
register(_mlm(512, 77))
