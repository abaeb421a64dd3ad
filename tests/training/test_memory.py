"""Bytes of a step on a device, and what rematerialisation leaves of them."""
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ptmjax.nn.stack import REMAT
from ptmjax.parallel.mesh import make_mesh
from ptmjax.training import memory
from ptmjax.training.memory import Memory
from tests.compiled import compiled, step

MESH = "data=2,fsdp=2,model=2"


def test_held_counts_a_devices_part_of_each_array():
    mesh = make_mesh("data=2,model=4")
    at = lambda shape, kind, *axes: jax.ShapeDtypeStruct(shape, kind, sharding=NamedSharding(mesh, P(*axes)))
    tree = {"a": at((8, 12), jnp.float32, "data", "model"), "b": at((8,), jnp.bfloat16), "key": jax.eval_shape(lambda: jax.random.key(0))}
    assert memory.held(tree) == 4 * 3 * 4 + 16


def test_peak():
    there = Memory(parameters=100, optimizer=200, carry=30, batch=4, padding=50, temporaries=1000, code=5)
    assert there.state == 330 and there.peak == 1389 and there._replace(padding=None).peak == 1339
    assert there._replace(code=None).peak is None and there._replace(temporaries=None).peak is None


@pytest.mark.parametrize("unread", [0, 100])
def test_padding_is_what_xla_takes_beyond_the_shapes(unread):
    """A state that is given up and given back counts once; of what the step does not read nothing is known, but that it lies there."""
    found = step("bert_large", "cpu:8", MESH, LAYERS=4)
    plain = memory.of_step(found.plan, found.batch)
    read = plain.state + plain.batch - unread
    told = lambda more: SimpleNamespace(memory_analysis=lambda: more and SimpleNamespace(
        argument_size_in_bytes=read + more, output_size_in_bytes=plain.state + more, alias_size_in_bytes=plain.state + more - 8,
        temp_size_in_bytes=700, generated_code_size_in_bytes=30))
    assert memory.of_compiled(found.plan, found.batch, told(500)) == plain._replace(padding=508 - unread, temporaries=700, code=30)
    assert memory.of_compiled(found.plan, found.batch, told(1)).padding == max(0, 9 - unread)
    assert memory.of_compiled(found.plan, found.batch, told(None)) == plain and plain.peak is None


def test_parameters_and_optimizer_are_what_the_compiled_step_takes():
    """To the byte, with the counters (steps done, and the loop's three), the key, and what the step reads of the batch: not the record
    ids nor, without a carry, where streams begin."""
    found, program = step("bert_large", "cpu:8", MESH, LAYERS=4), compiled("bert_large", "cpu:8", MESH, LAYERS=4)
    there = memory.of_compiled(found.plan, found.batch, program)
    read = {name: x for name, x in found.batch.items() if name not in ("index", "start")}
    assert there.parameters + there.optimizer + memory.held(read) + 4 * 4 + 8 == program.memory_analysis().argument_size_in_bytes
    assert there.carry == 0 and there.temporaries == program.memory_analysis().temp_size_in_bytes > 0


@pytest.mark.parametrize("name", [name if name == "full" else pytest.param(name, marks=pytest.mark.slow) for name in REMAT if name != "none"])
def test_what_is_computed_again_is_not_kept(name):
    """The same step (tests/nn/test_stack.py holds loss and gradients to that) with fewer temporaries."""
    kept = lambda remat: compiled("bert_large", "cpu:1", "data=1", remat=remat, LAYERS=4, BATCH=32).memory_analysis().temp_size_in_bytes
    assert kept(name) < (0.8 if name == "full" else 1) * kept("none")


def test_what_lies_between_the_parts_of_layers_is_shared_out():
    """The same step (tests/systems/test_systems.py) with fewer temporaries on each of four devices: .73 of them."""
    kept = lambda on: compiled("bert_large", "cpu:8", "data=2,model=4", LAYERS=4, BATCH=32, **{"Stack.sequence": on}).memory_analysis()
    assert kept(True).temp_size_in_bytes < 0.8 * kept(False).temp_size_in_bytes
