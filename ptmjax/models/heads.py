"""From hidden states to scores.

B rows, L length, K slots, D width, E width of the table, V vocabulary (V' padded), C candidates or classes.
"""
import jax
import jax.numpy as jnp
from flax import nnx

from ptmjax.nn.linear import Linear, add, product
from ptmjax.nn.mlp import activation
from ptmjax.nn.norm import Norm
from ptmjax.nn.param import Init, padded, param, rows
from ptmjax.types import Array, Slots, at_least, constrain, cross_entropy

NEVER = -1e9  # the score of a padded vocabulary entry: finite, so that 0 * NEVER stays 0


class VocabularyHead(nnx.Module):
    """act(h W + b) normed (left out where act is None), then scores over a table [V', E] with a bias; BERT's MLM head.

    The table is tied by the path table of Build. scaled: states are multiplied by E^-.5, as T5 does where the table is that of
    its inputs, of variance 1. Padded entries score NEVER: never predicted, sampled or counted.
    """

    def __init__(self, size: int, width: int, *, embed: int | None = None, act: str | None = "gelu", norm: str = "layer",
                 eps: float = 1e-12, bias: bool = True, scaled: bool = False, init: Init = 0.02, key: Array):
        a, b, c = jax.random.split(key, 3)
        embed = width if embed is None else embed
        at_least(1, size=size, width=width, embed=embed)
        if act is None and embed != width:
            raise ValueError(f"with act None nothing maps width {width} to a table of width {embed}")
        self.size, self.act = size, None if act is None else activation(act)
        self.transform = None if act is None else Linear(width, embed, ("embed", None), init=init, key=a)
        self.norm = None if act is None else Norm(embed, norm, eps, key=b)
        self.table = param(c, (padded(size), embed), ("vocab", "embed"), init, real=size, fan_in=embed)
        self.bias = param(c, (padded(size),), ("vocab",), "zeros", real=size) if bias else None
        self.scale = embed**-0.5 if scaled else None

    def __call__(self, h: Array, where: Slots | None = None, candidates: Array | None = None) -> Array:
        """h [B, L, D] -> [B, L or K, V'], or [..., C] at candidates [..., C]."""
        h = h if where is None else where.take(h)
        if self.act is not None:
            h = self.norm(self.act(self.transform(h)))
        h = h if self.scale is None else h * self.scale
        if candidates is not None:
            table = rows(constrain(self.table[...], "vocab", None), candidates)
            scores = jnp.einsum("...d,...cd->...c", h, table, preferred_element_type=jnp.float32)
            return scores if self.bias is None else scores + rows(self.bias[...], candidates)
        scores = product(h, self.table[...].T, jnp.float32)
        scores = scores if self.bias is None else add(scores, self.bias[...])
        scores = jnp.where(jnp.arange(scores.shape[-1]) < self.size, scores, NEVER)
        return constrain(scores, "batch", *[None] * (h.ndim - 2), "vocab")

    def nll(self, h: Array, targets: Array, where: Slots | None = None) -> tuple[Array, Array, Array]:
        """cross_entropy() of targets [B, L or K]: (loss, hit, log Z)."""
        return cross_entropy(self(h, where), targets)


class Boundary(nnx.Module):
    """Scores of a token inside a span from what lies outside (SpanBERT, Joshi et al. 2020, section 3.2): the states of the places before
    and behind the span and a table of the token's place in it; twice act and norm, then a table of the vocabulary with a bias (`words`).

    most: places that a span may have; place: width of their table.
    """

    def __init__(self, size: int, width: int, *, embed: int | None = None, most: int = 20, place: int = 200, act: str = "gelu",
                 norm: str = "layer", eps: float = 1e-12, init: Init = 0.02, key: Array):
        at_least(1, most=most, place=place)
        a, b, c, d, e, f = jax.random.split(key, 6)
        embed = width if embed is None else embed
        self.act, self.most = activation(act), most
        self.places = param(a, (most, place), (None, None), init)
        self.first, self.first_norm = Linear(2 * width + place, width, ("embed", None), init=init, key=b), Norm(width, norm, eps, key=c)
        self.second, self.second_norm = Linear(width, embed, ("embed", None), init=init, key=d), Norm(embed, norm, eps, key=e)
        self.words = VocabularyHead(size, embed, act=None, init=init, key=f)

    def __call__(self, h: tuple[Array, Array, Array], where: Slots | None = None, candidates: Array | None = None) -> Array:
        """h: before, behind [B, K, D], and the number of the place in its span, from 0, int32 [B, K] -> [B, K, V']."""
        before, behind, number = h
        x = jnp.concatenate([before, behind, rows(self.places[...], jnp.minimum(number, self.most - 1))], -1)
        x = self.first_norm(self.act(self.first(x)))
        x = self.second_norm(self.act(self.second(x)))
        return self.words(x, None, candidates)

    def nll(self, h: tuple[Array, Array, Array], targets: Array, where: Slots | None = None) -> tuple[Array, Array, Array]:
        return cross_entropy(self(h), targets)


class Classifier(nnx.Module):
    """act(h W + b) W' + b': of the first position (BERT's pooler and NSP head), or of every one (ELECTRA's discriminator)."""

    def __init__(self, classes: int, width: int, *, first: bool = True, act: str = "tanh", init: Init = 0.02, key: Array):
        at_least(1, classes=classes, width=width)
        a, b = jax.random.split(key)
        self.first, self.act = first, activation(act)
        self.dense = Linear(width, width, ("embed", None), init=init, key=a)
        self.out = Linear(width, classes, (None, None), init=init, key=b)

    def __call__(self, h: Array, where: Slots | None = None, candidates: Array | None = None) -> Array:
        """h [B, L, D] -> [B, C] where first, else [B, L or K, C]."""
        h = h[:, 0] if self.first else h if where is None else where.take(h)
        return self.out(self.act(self.dense(h)))

    def nll(self, h: Array, targets: Array, where: Slots | None = None) -> tuple[Array, Array, Array]:
        return cross_entropy(self(h, where), targets)
