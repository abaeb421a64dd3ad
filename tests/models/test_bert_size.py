"""Parameter counts of the published BERTs from abstract shapes, and the golden shapes of a tiny one."""
from pathlib import Path

import pytest

from tests.models.bert import bert

GOLDEN = Path(__file__).parents[1] / "golden" / "bert_tiny_parameters.txt"
BASE, LARGE = (30522, 768, 12, 12, 3072), (30522, 1024, 16, 24, 4096)


@pytest.mark.parametrize("size, pooled, whole", [(BASE, 109_482_240, 110_106_428), (LARGE, 335_141_888, 336_226_108)])
def test_counts_are_those_of_the_release(size, pooled, whole, number):
    """google-research/bert counts the trunk with its pooler; the padding of the vocabulary never counts, the tied table once."""
    build = bert(*size, length=512, types=2)
    assert build.count() == whole
    assert whole - build.count("model/heads/mlm/*") - build.count("model/heads/nsp/out/*") == pooled
    number(f"BERT of {size[3]} layers: parameters with pooler, with both heads", [pooled, build.count()])


def listing(build) -> str:
    return "".join(f"{name} {leaf.dtype}{list(leaf.shape)} {','.join(map(str, leaf.names))}\n" for name, leaf in sorted(build.leaves.items()))


def test_golden_shapes():
    """Checkpoints are read by these paths: a change here needs a conversion of old checkpoints. Rewrite the file by hand only."""
    assert listing(bert()) == GOLDEN.read_text()
