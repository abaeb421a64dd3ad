"""A run begins with parameters of another: by path, renamed, by layers; whatever is not taken is said by name."""
from functools import partial

import jax
import numpy as np
import pytest

from ptmjax.convert.partial import initial
from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn.block import Block
from ptmjax.nn.stack import Stack
from ptmjax.training.build import Build
from ptmjax.training.checkpoint import Checkpoints
from ptmjax.types import UserError

TABLE, HEAD, BLOCKS = "model/embedder/parts/tokens/table", "model/heads/mlm", "model/stack/groups/0"
WO = f"{BLOCKS}/mlp/wo/kernel"


def build(layers=4, size=130, width=8, net="model", tied=True, loop=False, shared=()):
    embedder = partial(Embedder, {"tokens": partial(Table, "tokens", size, width)}, width)
    stack = partial(Stack, [(partial(Block, width, 2, 16), layers)], loop=loop, shared=shared)
    ties = {f"{net}/heads/mlm/table": f"{net}/embedder/parts/tokens/table"} if tied else {}
    return Build({net: partial(Network, embedder, Context, stack, {"mlm": partial(VocabularyHead, size, width)})}, ties)


def saved(folder, model, seed=5, change=lambda params: params):
    """The work folder of a run of `model` that stands at step 7, and what its parameters are."""
    params = change({n: jax.random.normal(jax.random.fold_in(jax.random.key(seed), i), x.shape) for i, (n, x) in enumerate(model.leaves.items())})
    store = Checkpoints(folder / "checkpoints")
    store.save(3, {"params": jax.tree.map(lambda x: 2 * x, params), "step": jax.numpy.int32(3)})
    store.save(7, {"params": params, "step": jax.numpy.int32(7)})
    store.close()
    return {n: np.asarray(x) for n, x in params.items()}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    return folder, saved(folder, build())


def taken(folder, model, renames=None):
    """(parameters, what was said)"""
    said = []
    return initial(folder, model, renames or {}, said.append), said


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        assert found[name].dtype == np.float32 and found[name].tobytes() == np.ascontiguousarray(x).tobytes(), name


@pytest.mark.parametrize("loop", [False, True])
def test_the_same_network(teacher, loop):
    folder, params = teacher
    found, said = taken(folder, build(loop=loop))
    same(found, params)
    assert said[0] == f"{folder}, step 7: {len(params)} of {len(params)} parameters are begun with"
    assert len(said) == 2 and said[1].endswith(" are loaded") and sorted(params)[0] in said[1]


@pytest.mark.parametrize("layers, which", [("[::2]", [0, 2]), ("[0, 3]", [0, 3]), ("[-1,0]", [3, 0]), ("[1:3]", [1, 2]), ("[2:]", [2, 3]), ("[::-3]", [3, 0])])
def test_some_layers_of_a_deeper_one(teacher, layers, which):
    folder, params = teacher
    found, _ = taken(folder, build(2), {BLOCKS: f"{BLOCKS}{layers}"})
    same(found, {name: x[which] if name.startswith(BLOCKS) else x for name, x in params.items()})


def test_layers_that_share_begin_with_one_of_theirs(teacher):
    folder, params = teacher
    found, _ = taken(folder, build(3, shared=("attention*",)), {BLOCKS: f"{BLOCKS}[2,3,0]", f"{BLOCKS}/attention": f"{BLOCKS}/attention[-1]"})
    chosen = lambda name: -1 if name.startswith(f"{BLOCKS}/attention/") else [2, 3, 0] if name.startswith(BLOCKS) else ...
    same(found, {name: x[chosen(name)] for name, x in params.items()})


def test_each_layer_begins_with_what_all_shared(tmp_path):
    params = saved(tmp_path, build(2, shared=("mlp*",)))
    found, said = taken(tmp_path, build(2))
    spread = lambda name: name.startswith(f"{BLOCKS}/mlp/")
    same(found, {name: np.stack([x, x]) if spread(name) else x for name, x in params.items()})
    assert said[-1] == f"{tmp_path}, step 7: {', '.join(filter(spread, sorted(params)))} is copied from what layers share there to each layer here"
    with pytest.raises(UserError, match=r"mlp/wi/bias is no stack of layers, of which \S+/mlp/wi/bias could take some: drop the \[...\]"):
        taken(tmp_path, build(2), {f"{BLOCKS}/mlp": f"{BLOCKS}/mlp[0,0]"})


def test_other_names_of_which_the_longest_counts(tmp_path):
    params = saved(tmp_path, build(2, net="student"))
    found, said = taken(tmp_path, build(2, tied=False), {"model": "student", f"{HEAD}/table": "student/embedder/parts/tokens/table", f"{HEAD}/bias": ""})
    wanted = {name.replace("student/", "model/"): x for name, x in params.items()}
    assert (wanted.pop(f"{HEAD}/bias") != 0).any()
    same(found, wanted | {f"{HEAD}/table": params["student/embedder/parts/tokens/table"]})
    assert said[-2:] == [f"{tmp_path}, step 7: {HEAD}/bias is new and keeps its initial law",
                         f"{tmp_path}, step 7: student/heads/mlm/bias of the checkpoint is skipped"]


def test_what_the_other_run_has_not_is_new(teacher):
    folder, params = teacher
    found, said = taken(folder, build(tied=False))
    same(found, params)
    assert said[-1] == f"{folder}, step 7: {HEAD}/table is new and keeps its initial law"


@pytest.mark.parametrize("rows", [130, 200])
def test_the_padding_of_a_vocabulary_alone_is_reshaped(tmp_path, rows):
    """130 entries, padded to 256 here and to `rows` there."""
    cut = lambda params: params | {name: params[name][:rows] for name in (TABLE, f"{HEAD}/bias")}
    params = saved(tmp_path, build(), change=cut)
    found, said = taken(tmp_path, build())
    for name in (TABLE, f"{HEAD}/bias"):
        assert found[name].shape[0] == 256 and (found[name][:130] == params[name][:130]).all() and not found[name][130:].any()
    assert f"{tmp_path}, step 7: {TABLE}, {HEAD}/bias is reshaped, by the padding of the vocabulary alone" in said


@pytest.mark.parametrize("model, renames, words", [
    (build(2), {}, ["is [4, ", "/0/", " is [2, ", "say which by Experiment.renames, such as {'model/stack/groups/0/", "[::2]'}"]),
    (build(width=16), {}, [" is [", "choose its sizes, or leave it out by Experiment.renames, {'model/", ": ''}"]),
    (build(size=300), {}, ["table is [256, 8]", "is [384, 8]"]),
    (build(size=60), {}, ["table is [256, 8]", "is [128, 8]"]),
    (build(2), {BLOCKS: f"{BLOCKS}[0,4]"}, ["has 4 layers", "is to have [0, 4]", "count from 0"]),
    (build(2), {BLOCKS: f"{BLOCKS}[:3]"}, ["is [3, ", " is [2, "]),
    (build(shared=("mlp*",)), {}, ["/mlp/wi/bias is [4, 16], ", "is [16]: say which by Experiment.renames, such as {'model/stack/groups/0/mlp/", "[0]'}"]),
    (build(shared=("*",)), {BLOCKS: f"{BLOCKS}[:2]"}, [" is shared by layers, and is to begin with 2 of model/", "name one, as [0]"]),
    (build(shared=("*",)), {BLOCKS: f"{BLOCKS}[4]"}, ["has 4 layers", "is to have [4]", "count from 0"]),
    (build(), {TABLE: f"{TABLE}[::2]"}, [f"{TABLE} is no stack of layers"]),
    (build(), {BLOCKS: f"{BLOCKS}[a]"}, ["write the layers as [::2] or [0,2,4]"]),
    (build(), {BLOCKS: f"{BLOCKS}[::0]"}, ["write the layers as [::2] or [0,2,4]"]),
    (build(), {"modle": "model"}, ["modle <- model: no parameter of this network lies under modle; there are model/"]),
    (build(), {"model": "modle"}, ["model <- modle: no parameter of ", " lies under modle; there are model/"]),
    (build(), {"model/embed": "model"}, ["no parameter of this network lies under model/embed;"]),
    (build(net="other"), {}, ["has no parameter of this network, such as other/", "Experiment.renames"]),
])
def test_what_does_not_fit_is_an_error_that_names_it(teacher, model, renames, words):
    with pytest.raises(UserError) as e:
        taken(teacher[0], model, renames)
    assert all(word in str(e.value) for word in words) and "\n" not in str(e.value), e.value


def test_no_checkpoint(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="holds no checkpoint: let `ptmjax train` reach its first save"):
        taken(tmp_path, build())


def test_a_damaged_step_is_passed_over(tmp_path):
    params = saved(tmp_path, build())
    next(p for p in (tmp_path / "checkpoints" / "7").rglob("manifest.ocdbt")).write_bytes(b"")
    found, said = taken(tmp_path, build())
    same(found, {name: 2 * x for name, x in params.items()})
    assert "7 cannot be read and is passed over" in said[0] and "step 3: " in said[1]
