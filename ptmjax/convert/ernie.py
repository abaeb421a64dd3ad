"""ERNIE 1.0 (Baidu; Sun et al. 2019, arXiv 1904.09223) in transformers' layout: BERT's under another name, without the task types of
later ERNIEs. Folders are read; a network of ours is written as the BERT that it equals.
"""
from collections.abc import Mapping
from functools import partial

from ptmjax.convert import bert
from ptmjax.convert.fields import only, parsed

MODEL = "ernie"
TEXT, ids, network, build, mine, config = bert.TEXT, bert.ids, bert.network, bert.build, bert.mine, bert.config
names, plain, copies = (partial(f, base=MODEL) for f in (bert.names, bert.plain, bert.copies))


def fields(config: Mapping, where: str) -> dict:
    return parsed(config, bert.FIELDS | {"use_task_id": only(False)}, bert.DEFAULTS | {"use_task_id": False}, where)
