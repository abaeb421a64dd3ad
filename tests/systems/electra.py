"""ELECTRA (Clark et al. 2020): a generator's samples inside the losses, a discriminator, shared tables."""
from collections.abc import Sequence
from functools import partial

from ptmjax.models.heads import Classifier
from ptmjax.nn.linear import Linear
from ptmjax.objectives.rtd import Rtd
from ptmjax.training.build import Build
from tests.systems.bert import SLOTS, coder, mlm, pairs, tied
from tests.systems.harness import System, lists


def system(frozen: Sequence[str] = (), sequence: bool = False, **shown: float) -> System:
    project = partial(Linear, 64, 32, (None, "embed"), init="fan_in")
    nets = {"generator": coder(32, 1, {"mlm": mlm(32, 64)}, embed=64, project=project, sequence=sequence),
            "discriminator": coder(64, 2, {"rtd": partial(Classifier, 1, 64, first=False, act="gelu", init="fan_in")}, sequence=sequence)}
    ties = tied("generator") | {"discriminator/embedder": "generator/embedder"}
    return System(Build(nets, ties, frozen), Rtd(SLOTS), partial(pairs, **shown), lists)
