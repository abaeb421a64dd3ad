import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ptmjax.parallel.mesh import make_mesh
from ptmjax.parallel.sharding import follow, placed, row_shards, rows_sharding
from ptmjax.types import UserError, sharding_rules

MESH = "data=2,fsdp=2,model=2"


def test_rows_lie_over_data_and_fsdp():
    mesh = make_mesh(MESH)
    assert row_shards(mesh) == 4 and row_shards(make_mesh("model=8")) == 1
    x = jax.device_put(jnp.arange(16).reshape(8, 2), rows_sharding(mesh))
    assert {s.data.shape for s in x.addressable_shards} == {(2, 2)}


def test_names_become_mesh_axes():
    mesh = make_mesh(MESH)
    assert placed(mesh, "a", (3, 8, 6), ("layers", "embed", "mlp")).spec == P(None, "fsdp", "model")
    assert placed(mesh, "a", (3, 8), (None, "embed")).spec == P(None, "fsdp")
    with sharding_rules({"mlp": None, "embed": ("fsdp", "model")}):
        assert placed(mesh, "a", (8, 6), ("embed", "mlp")).spec == P(("fsdp", "model"), None)


@pytest.mark.parametrize("shape, names, message", [
    ((7, 6), ("embed", "mlp"), r"parameter net/w \[7, 6\]: axis 'embed' of 7 does not divide by mesh axis 'fsdp' of 2"),
    ((8, 5), ("embed", "mlp"), r"parameter net/w \[8, 5\]: axis 'mlp' of 5 does not divide by mesh axis 'model' of 2"),
    ((6, 6), ("batch", None), r"axis 'batch' of 6 does not divide by mesh axis \('data', 'fsdp'\) of 4")])
def test_what_does_not_divide_is_named(shape, names, message):
    with pytest.raises(UserError, match=message):
        placed(make_mesh(MESH), "net/w", shape, names)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="'embde' is not in the sharding rules"):
        placed(make_mesh(MESH), "net/w", (8, 6), ("embde", "mlp"))


def test_optimizer_state_follows_its_parameters():
    mesh = make_mesh(MESH)
    params = {"a/kernel": jax.ShapeDtypeStruct((8, 6), jnp.float32), "a/bias": jax.ShapeDtypeStruct((6,), jnp.float32)}
    shardings = {"a/kernel": placed(mesh, "a/kernel", (8, 6), ("embed", "mlp")), "a/bias": placed(mesh, "a/bias", (6,), ("mlp",))}
    everywhere = NamedSharding(mesh, P())
    adam = follow(jax.eval_shape(optax.adamw(1e-3).init, params), params, shardings, everywhere)
    assert adam[0].mu == adam[0].nu == shardings and adam[0].count == everywhere


def test_what_is_reduced_to_one_lies_as_its_parameter_along_the_rest():
    """Factored moments of a stack [3, 8, 6]; a square matrix, where shapes alone would not tell rows from columns; what is of no parameter."""
    mesh, everywhere = make_mesh(MESH), NamedSharding(make_mesh(MESH), P())
    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)
    params = {"a/kernel": shape(3, 8, 6), "b/kernel": shape(8, 8)}
    shardings = {"a/kernel": placed(mesh, "a/kernel", (3, 8, 6), ("layers", "embed", "mlp")), "b/kernel": placed(mesh, "b/kernel", (8, 8), ("mlp", "embed"))}
    tree = {"rows": {"a/kernel": shape(3, 8, 1), "b/kernel": shape(8, 1)}, "columns": {"a/kernel": shape(3, 1, 6), "b/kernel": shape(1, 8)},
            "other": {"a/kernel": shape(3, 4, 6), "b/kernel": shape(8), "c": shape(8, 8)}, "count": shape()}
    found = follow(tree, params, shardings, everywhere)
    assert {name: s.spec for name, s in found["rows"].items()} == {"a/kernel": P(None, "fsdp", None), "b/kernel": P("model", None)}
    assert {name: s.spec for name, s in found["columns"].items()} == {"a/kernel": P(None, None, "model"), "b/kernel": P(None, "fsdp")}
    assert set(found["other"].values()) | {found["count"]} == {everywhere}
