"""A task over a text of a few hundred sentences: a gin file that imports this module may train on "tiny_en"."""
import os
import random
import tempfile
from pathlib import Path

from ptmjax.tasks.corpora import EN_PD_4096

from ptmjax.data.masking import Masking
from ptmjax.data.registry import register
from ptmjax.data.task import Task
from ptmjax.data.windows import Blocks

WORDS = "the old king saw a small ship by the sea and went home with his three brothers before night came".split()


def text() -> str:
    """The path of 200 documents of 40 words, the same in every process; TINY_TEXT=1 gives another text."""
    draw = random.Random(int(os.environ.get("TINY_TEXT", 0)))
    path = Path(tempfile.mkdtemp()) / "text.txt"
    path.write_text("\n\n".join(" ".join(draw.choices(WORDS, k=40)) for _ in range(200)) + "\n")
    return str(path)


MASKING = Masking(EN_PD_4096, 16, cap=4)
register(Task("tiny_en", text(), EN_PD_4096, Blocks(14, minimum=4), MASKING, MASKING.readout(), shards=2, holdout=10))
