"""Masked tokens at other rates than 15 %, for the sweep of them (gin/sweeps/masking_rate.gin). A name has the rate in per cent before the
length of a row; otherwise they are as in pretrain.py."""
from ptmjax.tasks.corpora import EN_PD_4096, EN_PD_SMALL

from ptmjax.data.masking import Masking
from ptmjax.data.registry import register
from ptmjax.data.task import Task
from ptmjax.data.windows import Blocks

for _percent in (5, 30, 40):
    _masking = Masking(EN_PD_4096, 64, rate=_percent / 100, types=True)
    register(Task(f"en_pd_mlm{_percent:02}_64", EN_PD_SMALL, EN_PD_4096, Blocks(62, minimum=8), _masking, _masking.readout()))
