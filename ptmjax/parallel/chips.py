"""Chips that a step can be compiled for: what a device of one computes a second, holds, and moves.

Sources: docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e and tpu7x as they stand in 2026. Their interconnect is given for both directions
together; here is what a chip receives, half of it. v4's: six links of 50 GB/s (Jouppi et al. 2023, arXiv 2304.01433, section 2).
A chip of tpu7x is two devices, each with half of its products and memory; they share its 600 GB/s, and exchange over a link of their own,
of whose speed no page gives a figure.
"""
from typing import NamedTuple

GIB = 2**30


class Chip(NamedTuple):
    flops: float  # a second, of products of bfloat16 summed in float32: what jax makes of float32 products too, unless asked otherwise
    memory: int  # bytes; libtpu keeps some hundred MiB of them for itself
    bandwidth: float  # bytes a second from and to that memory
    network: float | None  # bytes a second that it receives over all its links; None where that is not known
    axes: int  # of the torus that its links make
    pod: int  # how many chips the links join at most
    devices: int = 1  # of a chip


CHIPS: dict[str, Chip] = {
    "v4": Chip(275e12, 32 * GIB, 1200e9, 300e9, 3, 4096),
    "v5e": Chip(197e12, 16 * GIB, 819e9, 200e9, 2, 256),
    "v5p": Chip(459e12, 95 * GIB, 2765e9, 600e9, 3, 8960),
    "v6e": Chip(918e12, 32 * GIB, 1638e9, 400e9, 2, 256),
    "tpu7x": Chip(2307e12 / 2, 96 * GIB, 7380e9 / 2, None, 3, 9216, devices=2),
}
