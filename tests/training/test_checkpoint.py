"""Checkpoints: exact on any mesh, and damage of any kind costs at most the damaged step."""
import functools
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import v1 as ocp

from ptmjax.nn.linear import Linear
from ptmjax.parallel.mesh import make_mesh
from ptmjax.training import checkpoint
from ptmjax.training.build import Build
from ptmjax.training.checkpoint import FORMAT, Checkpoints, leaves, sums_of
from ptmjax.training.optimizer import Adafactor, AdamW
from ptmjax.types import UserError
from tests.training.test_step import Line, plan

EVERYWHERE = P()


def state_of(step: int, mesh=None, spec=EVERYWHERE):
    """A tree with what a run's state holds: parameters, a scalar, a key, a carry; all of it depends on the step."""
    rng = np.random.default_rng(step)
    put = lambda x, s=EVERYWHERE: jax.device_put(x, None if mesh is None else NamedSharding(mesh, s))
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    params = {"w": put(normal(16, 8), spec), "large": put(normal(128, 64)), "b/c": put(np.ones(8, np.float32))}
    return {"step": put(jnp.int32(step)), "params": params, "rng": put(jax.random.key(step)), "opt": ({}, (put(jnp.int32(step)),)),
            "carry": {"h": put(normal(8, 4))}}


def like(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def bits(tree):
    plain = lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return {name: np.asarray(plain(x)).tobytes() for name, x in leaves(tree).items()}


def stored(folder, steps, keep=10):
    store = Checkpoints(folder, keep)
    for step in steps:
        store.save(step, state_of(step))
    store.close()
    return folder


def restored(folder, step=3):
    """(state, what was said) as a new process would find them; `step` only gives the shapes."""
    said = []
    return Checkpoints(folder, say=said.append).restore(lambda _: like(state_of(step))), said


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("whole") / "checkpoints", [3, 6])


@pytest.fixture
def folder(two_steps, tmp_path):
    return shutil.copytree(two_steps, tmp_path / "checkpoints")


def test_the_newest_comes_back_bit_for_bit(folder):
    state, said = restored(folder)
    assert bits(state) == bits(state_of(6)) and said == []
    assert Checkpoints(folder).steps() == [3, 6]


def test_nothing_to_restore(tmp_path):
    assert restored(tmp_path / "none") == (None, [])


def test_keeps_the_newest(tmp_path):
    assert Checkpoints(stored(tmp_path, [2, 10, 11, 100], keep=2)).steps() == [11, 100]


# ------------------------------------------------------------------ the best
def ranked(folder, numbers, keep=3, best="validation/loss"):
    """Saves steps 1, 2, ... with these numbers, None: not evaluated; each in a call of its own, as a run that is stopped often."""
    for step, x in enumerate(numbers, 1):
        store = Checkpoints(folder, keep, best=best)
        store.save(step, state_of(step), {} if x is None else {best or "validation/loss": x, "validation/other": -x})
        store.close()
    return Checkpoints(folder, keep, best=best)


@pytest.mark.parametrize("best, numbers, kept, first", [
    ("validation/loss", [0.9, 0.8, 0.7, 0.6, 0.5], [3, 4, 5], 5),
    ("validation/loss", [0.5, 0.6, 0.7, 0.8, 0.9], [1, 3, 4, 5], 1),
    ("validation/accuracy", [0.9, 0.8, 0.7, 0.6, 0.5], [1, 3, 4, 5], 1),
    ("validation/f1", [0.1, 0.8, 0.7, 0.6, 0.5], [2, 3, 4, 5], 2),
    ("validation/auc", [0.1, 0.1, 0.7, 0.6, 0.5], [3, 4, 5], 3),
    ("validation/loss", [0.5, None, 0.5, None, None, 0.5, None, None, None], [6, 7, 8, 9], 6),
    ("validation/loss", [None] * 5, [3, 4, 5], None),
    (None, [0.5, 0.6, 0.7, 0.8, 0.9], [3, 4, 5], None),
])
def test_the_newest_and_the_best_are_kept(tmp_path, best, numbers, kept, first):
    """Of the first row, a policy of metrics alone keeps steps 1 to 3 where it takes more for better (pitfall 49)."""
    store = ranked(tmp_path, numbers, best=best)
    assert store.steps() == kept and store.best_of(kept) == first
    assert bits(restored(tmp_path, kept[-1])[0]) == bits(state_of(kept[-1]))
    if first and best == "validation/loss":
        assert Checkpoints(tmp_path, best="validation/other").best_of(kept) == max(kept, key=lambda step: (numbers[step - 1] or 0, step))


def test_one_store_keeps_the_best_too(tmp_path):
    store = Checkpoints(tmp_path, 1, best="validation/loss")
    improved = []
    for step, x in enumerate([0.5, 0.6, 0.4, 0.7, 0.4, 0.8], 1):
        improved.append(store.improved(step, {"validation/loss": x}))
        store.save(step, state_of(step), {"validation/loss": x})
    store.close()
    assert store.steps() == [5, 6] and improved == [True, False, True, False, True, False]
    assert not store.improved(7, {}) and not store.improved(7, {"validation/mlm": 0.1}) and not Checkpoints(tmp_path).improved(7, {"validation/loss": 0.1})


def test_a_run_that_was_set_back_saves_again(tmp_path):
    """Pitfall 49: whoever removes the newest step goes on from the one before; a lower step than one that is there is written too."""
    stored(tmp_path, [100, 200], keep=2)
    shutil.rmtree(tmp_path / "200")
    assert bits(restored(tmp_path)[0]) == bits(state_of(100))
    assert bits(restored(stored(tmp_path, [150], keep=2))[0]) == bits(state_of(150))
    stored(tmp_path, [50], keep=9)
    assert Checkpoints(tmp_path).steps() == [50, 100, 150]
    assert bits(Checkpoints(tmp_path).params(like(state_of(50)["params"]), 50)[1]) == bits(state_of(50)["params"])


def test_a_step_by_its_number(tmp_path):
    said, wanted = [], like(state_of(1)["params"])
    store = Checkpoints(stored(tmp_path, [3, 6]), say=said.append)
    step, params = store.params(wanted, 3)
    assert step == 3 and bits(params) == bits(state_of(3)["params"])
    hurt(next(p for p in (tmp_path / "3").rglob("manifest.ocdbt")), "emptied")
    with pytest.raises(UserError, match=r"3 cannot be read \(.*\): name another step"):
        store.params(wanted, 3)
    assert store.params(wanted)[0] == 6 and not said and store.steps() == [3, 6]


@pytest.mark.parametrize("before, after", [((2, 2, 2), (8, 1, 1)), ((8, 1, 1), (1, 2, 4)), ((1, 1, 1), (2, 2, 2)), ((2, 2, 2), (1, 1, 1)), ((8, 1, 1), (2, 2, 1)),
                                           ((8, 1, 1), (1, 1, 1))])
def test_another_mesh_reads_the_same_bits(tmp_path, before, after):
    mesh = lambda shape: make_mesh("data={},fsdp={},model={}".format(*shape), jax.devices()[: int(np.prod(shape))])
    store = Checkpoints(tmp_path)
    store.save(5, state_of(5, mesh(before), P("fsdp", "model")))
    store.close()
    wanted = state_of(1, mesh(after), P("model", "data"))
    found = Checkpoints(tmp_path).restore(lambda _: like(wanted))
    assert bits(found) == bits(state_of(5))
    assert jax.tree.map(lambda x, w: x.sharding == w.sharding, found, wanted) == jax.tree.map(lambda x: True, wanted)
    plain = Checkpoints(tmp_path).some_params(sorted)[1]
    assert {f"params/{name}": x.tobytes() for name, x in plain.items()} == {n: x for n, x in bits(state_of(5)).items() if n.startswith("params/")}
    assert all(type(x) is np.ndarray for x in plain.values())


def test_a_save_holds_the_state_of_its_moment(tmp_path):
    """The arrays are given away to the next step while the save is still being written."""
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    x, store = jnp.zeros((256, 1024)), Checkpoints(tmp_path)
    store.save(1, {"x": x})
    for _ in range(3):
        x = step(x)
    store.close()
    assert (np.asarray(Checkpoints(tmp_path).restore(lambda _: like({"x": x}))["x"]) == 0).all() and (np.asarray(x) == 3).all()


# ------------------------------------------------------------------ damage
def files_of(step):
    return sorted(str(p.relative_to(step)) for p in step.rglob("*") if p.is_file())


def hurt(path, how):
    if how == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 if how == "halved" else 0])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax leaves coroutines behind when a read fails
@pytest.mark.parametrize("how", ["emptied", "halved", "removed"])
def test_each_damaged_file_is_harmless_or_costs_its_step_alone(two_steps, tmp_path, how):
    """No damage gives other numbers, stops the run, or loses a file."""
    names, set_aside = files_of(two_steps / "6"), []
    assert len(names) >= 6
    for number, name in enumerate(names):
        folder = shutil.copytree(two_steps, tmp_path / str(number))
        hurt(folder / "6" / name, how)
        state, said = restored(folder)
        if bits(state) == bits(state_of(6)):
            assert said == [] and Checkpoints(folder).steps() == [3, 6], name
            continue
        assert bits(state) == bits(state_of(3)), name
        assert len(said) == 1 and str(folder / "6") in said[0] and "broken-6-1" in said[0] and "\n" not in said[0], (name, said)
        assert Checkpoints(folder).steps() == [3] and len(files_of(folder / "broken-6-1")) == len(names) - (how == "removed"), name
        set_aside.append(name)
    assert any("ocdbt.process_0/d/" in name for name in set_aside) and "_CHECKPOINT_METADATA" in set_aside, set_aside


def altered(step, name, act):
    """Writes step `step` of a folder again with leaf `name` altered, under the sums of what it was."""
    state, about = state_of(int(step.name)), ocp.metadata(step).custom_metadata
    paths, tree = jax.tree.flatten(state)
    changed = [act(x) if n == name else x for n, x in zip(leaves(state), paths)]
    shutil.rmtree(step)
    with ocp.training.Checkpointer(step.parent) as manager:
        manager.save(int(step.name), jax.tree.unflatten(tree, changed), custom_metadata=about)


def flipped(bit):
    """Of the middle number of x, that bit."""
    def act(x):
        raw = np.array(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        raw.reshape(-1).view(np.uint32)[raw.size // 2] ^= np.uint32(1 << bit)
        return jax.random.wrap_key_data(raw) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else jnp.asarray(raw)

    return act


@pytest.mark.parametrize("name, bit", [("params/w", 0), ("params/w", 31), ("params/large", 12), ("carry/h", 30), ("rng", 5), ("step", 4)])
def test_one_flipped_bit_costs_its_step(folder, name, bit):
    """Numbers that can be read, but are not those that were saved; parameters alone are held to their own sums."""
    altered(folder / "6", name, flipped(bit))
    said, wanted = [], like(state_of(1)["params"])
    step, params = Checkpoints(folder, say=said.append).params(wanted)
    if name.startswith("params/"):
        assert step == 3 and bits(params) == bits(state_of(3)["params"]) and name in said[0]
    else:
        assert step == 6 and said == []
    state, said = restored(folder)
    assert bits(state) == bits(state_of(3)) and Checkpoints(folder).steps() == [3]
    assert len(said) == 1 and "broken-6-1" in said[0] and f"the numbers of {name} are not those that were saved" in said[0], said


def test_flipped_bits_of_files_never_give_other_numbers(two_steps, tmp_path):
    """In each file with numbers, at five places."""
    names = [n for n in files_of(two_steps / "6") if "/d/" in n]
    for number, (name, part) in enumerate((n, part) for n in names for part in (0.1, 0.3, 0.5, 0.7, 0.9)):
        folder = shutil.copytree(two_steps, tmp_path / str(number))
        raw = bytearray((folder / "6" / name).read_bytes())
        raw[int(part * len(raw))] ^= 1 << number % 8
        (folder / "6" / name).write_bytes(raw)
        state, said = restored(folder)
        assert bits(state) == bits(state_of(3 if said else 6)), (name, part)


def test_sums_are_exact_and_see_every_kind():
    tree = {"f": jnp.float32([1.0, -1.0]), "h": jnp.bfloat16([1.0]), "b": jnp.array([True, True, False]), "i": jnp.int32([-1, 2]),
            "k": jax.random.key(5), "c": jnp.complex64([1 + 1j]), "u": jnp.uint8([255, 1]), "none": jnp.zeros((0, 3))}
    one = 0x3F800000
    assert sums_of(tree) == {"f": (one + one + 2**31) % 2**32, "h": 0x3F80, "b": 2, "i": 1, "k": 5, "c": 2 * one, "u": 256, "none": 0}
    assert sums_of({}) == {}


def test_a_step_from_before_the_sums_is_read(tmp_path):
    with ocp.training.Checkpointer(tmp_path) as manager:
        manager.save(4, state_of(4), custom_metadata={"format": 2})
    assert bits(restored(tmp_path)[0]) == bits(state_of(4))


def test_the_run_goes_on_after_damage(folder):
    """The next saves work, under the same number too, and a second break of that step is kept beside the first."""
    for number in (1, 2):
        shutil.rmtree(folder / "6")
        (folder / "6").mkdir()
        state, said = restored(folder)
        assert bits(state) == bits(state_of(3)) and f"broken-6-{number}" in said[0]
        stored(folder, [6, 9])
        assert bits(restored(folder)[0]) == bits(state_of(9))
        shutil.rmtree(folder / "9")
    assert {p.name for p in folder.iterdir()} == {"3", "6", "broken-6-1", "broken-6-2"}


def test_a_half_written_step_is_named_and_passed_over(folder):
    shutil.copytree(folder / "6", folder / "9.orbax-checkpoint-tmp")
    state, said = restored(folder)
    assert bits(state) == bits(state_of(6))
    assert len(said) == 1 and "9.orbax-checkpoint-tmp is half-written" in said[0]
    stored(folder, [9])
    assert Checkpoints(folder).steps() == [3, 6, 9] and restored(folder)[1] == []


def test_names_that_are_no_steps(folder):
    """A file with a step's name is a damaged step; what int() does not read is nobody's."""
    (folder / "\u00b2").mkdir()
    (folder / "8").write_text("")
    state, said = restored(folder)
    assert bits(state) == bits(state_of(6)) and len(said) == 1 and f"{folder / '8'} cannot be read and was moved to broken-8-1" in said[0]
    stored(folder, [8])
    assert Checkpoints(folder).steps() == [3, 6, 8] and (folder / "broken-8-1").is_file()


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    for act in (restored, lambda folder: Checkpoints(folder).params({})):
        with pytest.raises(UserError, match="checkpoints is a file, not the folder of the checkpoints: move it away"):
            act(tmp_path / "checkpoints")


def test_all_steps_broken(folder):
    for step in (3, 6):
        shutil.rmtree(folder / str(step))
        (folder / str(step)).mkdir()
    before = {p.name for p in folder.iterdir()}
    with pytest.raises(UserError, match="no checkpoint in .* can be read .*: move that folder away to begin at step 0"):
        restored(folder)
    assert {p.name for p in folder.iterdir()} == before


def test_what_may_pass_by_itself_costs_no_step(folder, monkeypatch):
    """No access and no memory are not damage: the run stops and the step stays."""
    for fault, kind in ((PermissionError(13, "Permission denied"), UserError), (OSError(24, "Too many open files"), UserError),
                        (MemoryError(), MemoryError)):
        def refuse(*_, fault=fault):
            raise ValueError("wrapped") from fault if not isinstance(fault, MemoryError) else fault

        def fail(*_, fault=fault):
            raise fault

        monkeypatch.setattr(checkpoint.ocp, "load", fail if kind is MemoryError else refuse)
        with pytest.raises(kind):
            restored(folder)
        assert Checkpoints(folder).steps() == [3, 6]


# ------------------------------------------------------------------ other models, formats
def another(change):
    tree = state_of(1)
    change(tree)
    return lambda _: like(tree)


@pytest.mark.parametrize("change, words", [
    (lambda t: t["params"].update(w=jnp.zeros((16, 9))), ["params/w", "float32[16, 8]", "float32[16, 9]"]),
    (lambda t: t["params"].update(w=jnp.zeros((16, 8), jnp.bfloat16)), ["params/w", "bfloat16"]),
    (lambda t: t["params"].update(v=jnp.zeros(3)), ["lacks params/v"]),
    (lambda t: t["params"].pop("b/c"), ["has params/b/c"]),
    (lambda t: t.update(opt=({}, ())), ["has opt/1/0", "optimizer"]),
    (lambda t: t["carry"].update(h=jnp.zeros((16, 4))), ["carry/h", "batch"]),
])
def test_another_model_is_refused_by_name_and_nothing_moves(folder, change, words):
    before = files_of(folder)
    with pytest.raises(UserError) as e:
        Checkpoints(folder).restore(another(change))
    assert all(w in str(e.value) for w in words) and str(folder / "6") in str(e.value) and "\n" not in str(e.value), e.value
    assert files_of(folder) == before


@pytest.mark.parametrize("version", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused(tmp_path, version):
    with ocp.training.Checkpointer(tmp_path) as manager:
        manager.save(4, state_of(4), custom_metadata={"format": version})
    with pytest.raises(UserError, match=f"has format {version}, this version of ptmjax reads {FORMAT}: go on with the version"):
        restored(tmp_path)
    assert Checkpoints(tmp_path).steps() == [4]


def test_links_without_leaves_may_come_and_go(folder):
    """Optax keeps an empty state for each link of a chain: one more at the end is neither damage nor another optimizer."""
    for opt in (({}, (jnp.int32(1),), ()), ({}, (jnp.int32(1), {})), ((), [jnp.int32(1)])):
        wanted = like(state_of(1) | {"opt": opt})
        state = Checkpoints(folder).restore(lambda _: wanted)
        assert bits(state) == bits(state_of(6)) and jax.tree.structure(state) == jax.tree.structure(wanted)


OPTIMIZERS = {"adamw": AdamW(lambda step: 0.1), "adafactor": Adafactor(lambda step: 0.1, smallest=0)}


def trained_by(name, factory=Line):
    build = Build({"model": factory})
    return plan(build=build, tx=OPTIMIZERS[name].transform(build.leaves)).abstract


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_paths_of_this_format(name):
    """Where they change, what was saved before cannot be read: raise FORMAT."""
    found = leaves(trained_by(name, functools.partial(Linear, 4, 3, ("embed", "mlp"))))
    golden = Path(__file__).parents[1] / "golden" / f"format_{FORMAT}_{name}.txt"
    assert "".join(f"{n} {x.dtype}{list(x.shape)}\n" for n, x in found.items()) == golden.read_text()


def test_a_step_that_was_saved_earlier_in_this_format_is_read(tmp_path):
    """The stored step is of AdamW over the plan below, its leaves counted through."""
    shutil.copytree(Path(__file__).parents[1] / "golden" / f"format_{FORMAT}", tmp_path / "checkpoints")
    wanted = trained_by("adamw")
    state = Checkpoints(tmp_path / "checkpoints").restore(lambda step: wanted)
    assert (int(state.step), {name: int(x) for name, x in state.loop.items()}) == (7, {"begin": 9000, "in_a_row": 10000, "skipped": 11000})
    np.testing.assert_array_equal(state.params["model/kernel"], 2000 + np.arange(256))
    np.testing.assert_array_equal(state.opt_state[1].nu["model/kernel"], 7000 + np.arange(256))
    np.testing.assert_array_equal(state.carry["seen"], 8000 + np.arange(8))
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), state) == jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), wanted)
    step, params = Checkpoints(tmp_path / "checkpoints").params(wanted.params)
    assert step == 7 and set(params) == set(wanted.params)
    Checkpoints(tmp_path / "again").save(8, state)


def test_another_optimizer_is_told_and_is_no_damage(tmp_path):
    shutil.copytree(Path(__file__).parents[1] / "golden" / f"format_{FORMAT}", tmp_path / "checkpoints")
    with pytest.raises(UserError, match="lacks opt_state/1/0/count, the present run has it: it is of another model, optimizer or version"):
        Checkpoints(tmp_path / "checkpoints").restore(lambda step: trained_by("adafactor"))
    assert Checkpoints(tmp_path / "checkpoints").steps() == [7]


def test_parameters_alone(folder):
    wanted = like(state_of(1)["params"])
    step, params = Checkpoints(folder).params(wanted)
    assert step == 6 and bits(params) == bits(state_of(6)["params"])
    hurt(next(p for p in (folder / "6").rglob("manifest.ocdbt")), "emptied")
    said = []
    step, params = Checkpoints(folder, say=said.append).params(wanted)
    assert step == 3 and bits(params) == bits(state_of(3)["params"]) and len(said) == 1 and str(folder / "6") in said[0]
    assert Checkpoints(folder).steps() == [3, 6]
    with pytest.raises(UserError, match="params/w"):
        Checkpoints(folder).params({**wanted, "w": jax.ShapeDtypeStruct((2, 2), jnp.float32, sharding=wanted["w"].sharding)})


def test_a_step_that_the_run_deletes_while_it_is_read(tmp_path):
    """Runs keep few steps: a reader beside one begins again with what has come since."""
    wanted, said = like(state_of(1)["params"]), []
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(3, state_of(3))
    checkpoints.wait()
    reader = Checkpoints(tmp_path / "checkpoints", say=said.append)
    read = reader.attempt

    def late(step, how):
        if step == 3:
            checkpoints.save(6, state_of(6))
            checkpoints.wait()
        return read(step, how)

    reader.attempt = late
    step, params = reader.params(wanted)
    assert step == 6 and bits(params) == bits(state_of(6)["params"]) and not said and reader.steps() == [6]
