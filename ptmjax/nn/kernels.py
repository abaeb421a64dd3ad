"""Kernels of attention: what each can do, which of them a call gets, and the calls themselves.

B rows, L queries, M keys, H heads, K head size. A call takes q [B, L, H, K] (already scaled), k and v [B, M, H, K], see and a bias
[B or 1, H, L, M], and gives [B, L, H, K]. What it gives of a query that sees nothing is for the caller to take away.
"""
import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as flash_tpu
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash_tpu
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_masks

from ptmjax.nn.masks import See, dense
from ptmjax.types import Array, UserError, spec

REFERENCE, AUTO = "reference", "auto"
LANES = 128  # of a TPU's registers: splash and flash take lengths that are multiples of it; others are padded
BLOCKS = (512, 256, 128)  # queries, and keys, that splash and flash hold at a time: the first that divides the length
WASTE = 2  # "auto" takes no kernel for which padding makes more than so many times as many scores


# ------------------------------------------------------------------ the calls
def xla(q: Array, k: Array, v: Array, see: See | Array, bias: Array | None = None) -> Array:
    """jax.nn's, which holds all scores, as the reference does: to compare with."""
    return jax.nn.dot_product_attention(q, k, v, bias, dense(see)[:, None], scale=1.0, implementation="xla")


def cudnn(q: Array, k: Array, v: Array, see: See | Array, bias: Array | None = None) -> Array:
    """cuDNN's, for NVIDIA GPUs. It takes the mask as a bias [B, 1, L, M], and a bias in the type of q.

    It was never run here, for want of a GPU: the tests lower it for CUDA and find its call there. So "auto" does not choose it."""
    bias = None if bias is None else bias.astype(q.dtype)
    return jax.nn.dot_product_attention(q, k, v, bias, dense(see)[:, None], scale=1.0, implementation="cudnn")


def splash(q: Array, k: Array, v: Array, see: See) -> Array:
    """Pallas' for TPUs: it holds blocks of the scores, and leaves out those that causality hides."""
    def part(q: Array, k: Array, v: Array, queries: Array, keys: Array) -> Array:
        heads, lengths, a, b = q.shape[1], (q.shape[2], k.shape[2]), block(q), block(k)
        mask = splash_masks.CausalMask(lengths) if see.causal else splash_masks.FullMask(lengths)
        sizes = splash_tpu.BlockSizes(block_q=a, block_kv=b, block_q_dkv=a, block_kv_dkv=b, block_q_dq=a, block_kv_dq=b)
        kernel = splash_tpu.make_splash_mha_single_device(splash_masks.MultiHeadMask([mask] * heads), block_sizes=sizes)
        return jax.vmap(lambda q, k, v, *segments: kernel(q, k, v, segment_ids=splash_tpu.SegmentIds(*segments)))(q, k, v, queries, keys)

    return on_devices(part, q, k, v, see, None)


def flash(q: Array, k: Array, v: Array, see: See, bias: Array | None = None) -> Array:
    """Pallas' older one for TPUs, which takes a bias: [B, H, L, M], held in full, and so is its gradient."""
    def part(q: Array, k: Array, v: Array, queries: Array, keys: Array, bias: Array | None = None) -> Array:
        a, b = block(q), block(k)
        sizes = flash_tpu.BlockSizes(
            block_q=a, block_k_major=b, block_k=b, block_b=1, block_q_major_dkv=a, block_k_major_dkv=b, block_k_dkv=b, block_q_dkv=a,
            block_k_major_dq=b, block_k_dq=b, block_q_dq=a)
        return flash_tpu.flash_attention(q, k, v, bias, flash_tpu.SegmentIds(queries, keys), causal=see.causal, block_sizes=sizes)

    return on_devices(part, q, k, v, see, bias)


def on_devices(part: Callable[..., Array], q: Array, k: Array, v: Array, see: See, bias: Array | None) -> Array:
    """part(q, k, v [B, H, length, K], segments of queries and keys[, bias]) on every device's rows and heads: the compiler would not
    know how to split it. Lengths are padded to LANES, with positions of no segment."""
    after, over = (-x.shape[1] % LANES for x in (q, k))
    wide = lambda x, n: jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, n), (0, 0)))
    long = lambda segments, n: jnp.pad(segments, ((0, 0), (0, n)))
    xs = [wide(q, after), wide(k, over), wide(v, over), long(see.queries, after), long(see.keys, over)]
    if bias is not None:
        xs.append(jnp.pad(jnp.broadcast_to(bias, (len(q), *bias.shape[1:])), ((0, 0), (0, 0), (0, after), (0, over))))
    if not jax.sharding.get_abstract_mesh().empty:
        specs = tuple(spec("batch", None) if x.ndim == 2 else spec("batch", "heads", None, None) for x in xs)
        part = jax.shard_map(part, in_specs=specs, out_specs=specs[0], check_vma=False)
    return part(*xs)[:, :, : q.shape[1]].swapaxes(1, 2)


def block(x: Array) -> int:
    """How much of the length of x [B, H, length, K] is held at a time."""
    return next(n for n in BLOCKS if x.shape[2] % n == 0)


# ------------------------------------------------------------------ the choice
class Needs(NamedTuple):
    """What a call of attention asks for, as far as kernels differ in it."""

    queries: int
    keys: int
    size: int
    dtype: str
    dropout: bool = False
    capture: bool = False
    bias: bool = False
    dense: bool = False

    def wasteful(self) -> bool:
        padded = lambda n: n + -n % LANES
        return padded(self.queries) * padded(self.keys) > WASTE * self.queries * self.keys


class Kernel(NamedTuple):
    """What a kernel can do; of platforms, types and head sizes, None is all."""

    call: Callable[..., Array]
    platforms: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    sizes: Callable[[int], bool] | None = None
    bias: bool = True
    dense: bool = True
    odd: bool = True  # lengths, where there is a bias or a mask


KERNELS = {
    "xla": Kernel(xla),
    "cudnn": Kernel(cudnn, ("gpu",), ("bfloat16", "float16"), lambda size: size % 8 == 0 and size <= 128, odd=False),
    "splash": Kernel(splash, ("tpu",), ("bfloat16", "float32"), bias=False, dense=False),
    "flash": Kernel(flash, ("tpu",), ("bfloat16", "float32"), lambda size: size % LANES == 0 or size < LANES, dense=False),
}
BEST = {"tpu": ("splash", "flash")}  # platform -> what "auto" tries, in order, before the reference
CHOICES = (AUTO, REFERENCE, *KERNELS)


_noted: list[set[str]] = []  # of noting(), one inside another


@contextlib.contextmanager
def noting() -> Iterator[set[str]]:
    """The kernels that calls of attention get which are traced within."""
    _noted.append(found := set())
    try:
        yield found
    finally:
        _noted.pop()


def chosen(name: str, needs: Needs) -> str:
    """The kernel of a call on the devices that it is for; noting() hears of it."""
    found = choose(name, platform(), needs)
    for noted in _noted:
        noted.add(found)
    return found


def platform() -> str:
    """Of the devices that the program at hand is for: those of the mesh, which need not be here, or jax's own."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def lacks(name: str, platform: str, needs: Needs) -> list[str]:
    """What the call asks for and the kernel does not have."""
    if name == REFERENCE:
        return []
    has = KERNELS[name]
    asked = {
        f"code for {platform} devices": has.platforms is not None and platform not in has.platforms,
        "dropout of probabilities (attention_rate)": needs.dropout,
        "scores and probabilities to capture": needs.capture,
        "bias": needs.bias and not has.bias,
        "mask beyond segments and causality": needs.dense and not has.dense,
        f"type {needs.dtype}": has.dtypes is not None and needs.dtype not in has.dtypes,
        f"heads of size {needs.size}": has.sizes is not None and not has.sizes(needs.size),
        f"lengths {needs.queries} and {needs.keys}": not has.odd and bool(needs.queries % 2 or needs.keys % 2),
    }
    return [what for what, true in asked.items() if true]


def choose(name: str, platform: str, needs: Needs) -> str:
    """The kernel of a call: the one named, or of "auto" the platform's first that has all that is asked for, else the reference.

    "auto" never drops anything, and takes what was run or compiled for its platform: on a TPU splash, with a bias flash. A kernel
    that is named and lacks something is a UserError that tells what, and which have it."""
    if name == AUTO:
        return next((best for best in BEST.get(platform, ()) if not needs.wasteful() and not lacks(best, platform, needs)), REFERENCE)
    if missing := lacks(name, platform, needs):
        fit = ", ".join(repr(other) for other in (REFERENCE, *KERNELS) if not lacks(other, platform, needs))
        raise UserError(f"attention kernel {name!r} has no {', no '.join(missing)}: let the kernel of the block (Block.kernel, "
                        f"T5Block.kernel) be 'auto' or one of {fit}")
    return name
