"""ALBERT (Lan et al. 2020): bert.py's rows and losses, narrow tables, and layers that share all but their norms."""
from functools import partial

from ptmjax.models.heads import Classifier
from ptmjax.nn.linear import Linear
from ptmjax.objectives.base import Encoding
from ptmjax.objectives.token import Mlm, Sentence
from ptmjax.training.build import Build
from tests.systems.bert import SLOTS, coder, mlm, pairs, tied
from tests.systems.harness import System, lists

E, D = 32, 64


def system() -> System:
    heads = {"mlm": mlm(D, E), "sop": partial(Classifier, 2, D, init="fan_in")}
    project = partial(Linear, E, D, (None, "embed"), init="fan_in")
    build = Build({"model": coder(D, 3, heads, embed=E, project=project, shared=("attention*", "mlp*"))}, tied("model"))
    return System(build, Encoding([Mlm(SLOTS), Sentence("sop")]), pairs, lists)
