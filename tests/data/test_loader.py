import os
import subprocess
import sys
import types as python_types

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ptmjax.data import loader
from ptmjax.data.loader import Source, batches, evaluation
from ptmjax.data.masking import Masking
from ptmjax.data.order import Mixed, Sequential, Shuffled, Streams
from ptmjax.data.records import records
from ptmjax.data.task import Task
from ptmjax.data.windows import Blocks
from ptmjax.types import BATCH, UserError

RECORDS = [{"tokens": np.arange(5 + i, 5 + i + 3 + i % 9, dtype=np.int32)} for i in range(50)]


def sharding():
    mesh = jax.make_mesh((1, 1, 1), ("data", "fsdp", "model"), devices=jax.devices()[:1])
    return NamedSharding(mesh, P(("data", "fsdp")))


def copy_tokens(example, rng, lookup):
    """A corruption without `rows`: rank 1 and 2 keys, a label, and one draw."""
    tokens = np.zeros(12, np.int32)
    tokens[: len(example["tokens"])] = example["tokens"]
    return {"tokens": tokens, "visible": tokens[:, None] > tokens, "label": np.int32(rng.integers(1000))}


@pytest.fixture
def source(english):
    return Source(RECORDS, Shuffled(50, 1), Masking(english, 12), 3, "t")


def equal(a, b):
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_array_equal(np.asarray(a[key]), np.asarray(b[key]), err_msg=key)


def test_example(source):
    record, epoch, _ = source.order(60)
    assert epoch == 1
    out = source.example(60)
    assert {key: (x.shape, x.dtype.name) for key, x in out.items()} == dict(
        tokens=((12,), "int32"), targets=((12,), "int32"), weights=((12,), "float32"), segments=((12,), "int32"),
        row_weights=((), "float32"), index=((), "int32"), start=((), "bool"),
    )  # fmt: skip
    assert out["index"] == record and out["row_weights"] == 1 and out["start"]
    body = RECORDS[record]["tokens"][:10]
    assert out["targets"].tolist() == [2, *body.tolist(), 3] + [0] * (10 - len(body))


def test_row_weights_of_the_corruption_stand():
    source = Source(RECORDS, Sequential(50), lambda e, rng, lookup: {"row_weights": np.float32(0.5), "label": np.int32(1)}, 0, "t")
    assert source.example(0)["row_weights"] == 0.5


def test_batch_is_its_rows_of_the_order(source):
    for step, batch in zip(range(7, 10), batches(source, 8, sharding(), begin=7, end=10), strict=True):
        for row in range(8):
            equal({key: x[row] for key, x in batch.items()}, source.example(step * 8 + row))


def test_corruption_without_rows():
    source = Source(RECORDS, Shuffled(50, 1), copy_tokens, 3, "t")
    batch = next(batches(source, 8, sharding()))
    assert {key: x.shape for key, x in batch.items()} == dict(
        tokens=(8, 12), visible=(8, 12, 12), label=(8,), index=(8,), start=(8,), row_weights=(8,)
    )
    for row in range(8):
        equal({key: x[row] for key, x in batch.items()}, source.example(row))


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 31), min_size=1, unique=True))
def test_any_rows_of_a_batch_are_what_they_are_in_the_whole(english, step, rows):
    """So any number of hosts, each with its own rows, gives one global batch."""
    source = Source(RECORDS, Shuffled(50, 1), Masking(english, 12), 3, "t")
    whole = source.examples(step * 32 + np.arange(32))
    part = source.examples(step * 32 + np.array(sorted(rows)))
    equal(part, {key: x[sorted(rows)] for key, x in whole.items()})


def test_every_epoch_shows_every_record_once_with_fresh_masks(source):
    seen = []
    for epoch in (0, 1):
        found = list(batches(source, 10, sharding(), epoch * 5, epoch * 5 + 5))
        index, weights = (np.concatenate([np.asarray(b[key]) for b in found]) for key in ("index", "weights"))
        assert len(index) == 50
        seen.append(dict(zip(index.tolist(), weights)))
    assert set(seen[0]) == set(seen[1]) == set(range(50))
    same = [np.array_equal(seen[0][i], seen[1][i]) for i in range(50)]
    assert sum(same) < 25


def test_stopped_inside_the_second_epoch(english):
    """Pitfall 50: of 10 records in batches of 2, the steps from 8 on read what they read in a run that was not stopped after 7."""
    source = Source(RECORDS[:10], Shuffled(10, 1), Masking(english, 12), 3, "t")
    whole, rest = (list(batches(source, 2, sharding(), begin, 15)) for begin in (0, 7))
    for a, b in zip(whole[7:], rest, strict=True):
        equal(a, b)
    epochs = np.concatenate([b["index"] for b in whole]).reshape(3, 10)
    assert [sorted(epoch) for epoch in epochs.tolist()] == [list(range(10))] * 3 and len({tuple(epoch) for epoch in epochs.tolist()}) == 3


def test_static_masks_come_again_after_dupe_factor_epochs(source, english):
    static = Source(RECORDS, Shuffled(50, 1), Masking(english, 12), 3, "t", dupe_factor=3)

    def epoch(source, e):
        made = source.examples(e * 50 + np.arange(50))
        return {i: (t.tolist(), w.tolist()) for i, t, w in zip(made["index"].tolist(), made["tokens"], made["weights"])}

    epochs = [epoch(static, e) for e in range(8)]
    for e in range(5):
        assert epochs[e] == epochs[e + 3]
        assert sum(epochs[e][i] == epochs[e + 1][i] for i in range(50)) < 25  # chance: a piece of few, shown alike
    assert epochs[:3] == [epoch(source, e) for e in range(3)]  # the first copies are the fresh ones
    assert epoch(source, 3) != epochs[3]
    assert static.order(0) == source.order(0) and static.order(150) != static.order(0)  # the order goes on being drawn
    with pytest.raises(UserError, match="dupe_factor is 0"):
        Source(RECORDS, Shuffled(50, 1), Masking(english, 12), 3, "t", dupe_factor=0)


def test_threads_do_not_matter(source):
    one, three = (list(batches(source, 8, sharding(), 0, 20, threads=t, prefetch=p)) for t, p in ((1, 1), (3, 8)))
    assert len(one) == 20
    for a, b in zip(one, three, strict=True):
        equal(a, b)


def test_resume_reads_no_more_at_a_million_than_at_ten(english):
    class Counting(list):
        read = 0

        def __getitem__(self, i):
            self.read += 1
            return super().__getitem__(i)

    read = []
    for begin in (10, 10**6):
        records = Counting(RECORDS)
        source = Source(records, Shuffled(50, 1), Masking(english, 12), 3, "t")
        records.read = 0
        found = list(batches(source, 8, sharding(), begin, begin + 3))
        read.append(records.read)
        equal(found[1], source.examples((begin + 1) * 8 + np.arange(8)))
    assert read == [24, 24]


def test_endless_without_end(source):
    endless = batches(source, 8, sharding())
    assert [int(next(endless)["index"][0]) for _ in range(20)] == [source.order(8 * s)[0] for s in range(20)]


def test_streams_go_on_row_by_row():
    source = Source(RECORDS, Streams(50, 8, 0), copy_tokens, 3, "t")
    found = list(batches(source, 8, sharding(), 0, 12))
    index = np.stack([b["index"] for b in found])
    assert (np.diff(index[:6], axis=0) == 1).all() and (np.diff(index[6:], axis=0) == 1).all()
    assert [bool(np.asarray(b["start"]).all()) for b in found] == [s in (0, 6) for s in range(12)]


def test_evaluation_counts_every_record_once(source):
    for rows, given, total in ((8, None, 50), (50, None, 50), (64, None, 50), (8, 7, 7), (8, 8, 8), (8, 500, 50)):
        found = list(evaluation(source, rows, sharding(), given))
        assert len(found) == -(-total // rows)
        index = np.concatenate([b["index"] for b in found])
        assert index.tolist() == list(range(total)) + [-1] * (len(index) - total)
        real = index >= 0
        for key in ("weights", "segments", "row_weights", "tokens", "start"):
            values = np.concatenate([np.asarray(b[key]) for b in found])
            assert (values[~real] == BATCH[key].pad).all() and values[real].any()


def test_evaluation_masks_do_not_move(source):
    one, two = list(evaluation(source, 8, sharding())), list(evaluation(source, 20, sharding()))
    for key in ("tokens", "weights"):
        a, b = (np.concatenate([np.asarray(x[key]) for x in found])[:50] for found in (one, two))
        assert np.array_equal(a, b)
    assert isinstance(source.order, Shuffled)


def test_nothing_to_read(source, english):
    with pytest.raises(UserError, match="task t: there are no records to read"):
        Source([], Sequential, Masking(english, 12), 0, "t")
    with pytest.raises(UserError, match="an evaluation of 0 records"):
        evaluation(source, 8, sharding(), 0)


def test_shapes_that_change_are_refused():
    def ragged(example, rng, lookup):
        return {"tokens": example["tokens"]}

    def kinds(example, rng, lookup):
        return {"label": np.int32(1) if example["tokens"][0] == 5 else np.float32(1)}

    for corruption in (ragged, kinds):
        source = Source(RECORDS, Sequential(50), corruption, 0, "t")
        for positions in (np.arange(8), np.array([3])):
            with pytest.raises(ValueError, match="task t.*the corruption gave"):
                source.examples(positions)
    with pytest.raises(ValueError, match="'nonsense' is not in types.BATCH"):
        Source(RECORDS, Sequential(50), lambda e, rng, lookup: {"nonsense": np.int32(1)}, 0, "t")


def test_faults_in_workers_come_out():
    def broken(example, rng, lookup):
        if example["tokens"][0] == 20:
            raise RuntimeError("record fifteen is bad")
        return {"label": np.int32(1)}

    found = batches(Source(RECORDS, Sequential(50), broken, 0, "t"), 8, sharding())
    next(found)
    with pytest.raises(RuntimeError, match="record fifteen is bad"):
        next(found)


def test_lookup_is_the_corpus():
    source = Source(RECORDS, Sequential(50), lambda e, rng, lookup: {"label": np.int32(len(lookup) + lookup[3]["tokens"][0])}, 0, "t")
    assert source.example(9)["label"] == 58


def test_a_host_makes_only_its_rows(source):
    held = {0: (slice(4, 6),), 1: (slice(0, 2),), 2: (slice(4, 6),)}
    half = python_types.SimpleNamespace(shard_shape=lambda shape: shape, addressable_devices_indices_map=lambda shape: held)
    assert loader._needed(8, half).tolist() == [0, 1, 4, 5]


def test_a_host_may_hold_filler_alone(source, monkeypatch):
    """The last of 50 records in batches of 8 are rows 0 and 1; this host holds rows 4 to 7."""
    held = python_types.SimpleNamespace(shard_shape=lambda shape: shape, addressable_devices_indices_map=lambda shape: {0: (slice(4, 8),)})
    monkeypatch.setattr(loader, "_place", lambda local, *rest: local)
    found = list(evaluation(source, 8, held))
    assert [b["index"].tolist() for b in found] == [list(range(8 * s + 4, 8 * s + 8)) for s in range(6)] + [[-1] * 4]
    assert {key: (x.shape, x.dtype) for key, x in found[6].items()} == {key: (x.shape, x.dtype) for key, x in found[0].items()}


@pytest.mark.parametrize("hosts", [1, 2, 4, 8])
@pytest.mark.parametrize("texts", [1, 3])
def test_hosts_share_the_records_whatever_the_number_of_files(english, tmp_path, monkeypatch, texts, hosts):
    """Pitfall 56: over files of 7 lines every epoch is dealt to the hosts whole and without overlap, and an evaluation too."""
    for number in range(texts):
        (tmp_path / f"{number}.txt").write_text("\n".join(f"line {i} of file {number}" for i in range(7)))
    made = records(Task("lines", str(tmp_path / "*.txt"), english, Blocks(16), None, style="line", holdout=10**6), "train")
    source, n = Source(made, Shuffled(7 * texts, 1), Masking(english, 18), 3, "t"), 7 * texts
    monkeypatch.setattr(loader, "_place", lambda local, *rest: local)
    part = lambda host: python_types.SimpleNamespace(
        shard_shape=lambda shape: shape, addressable_devices_indices_map=lambda shape: {0: (slice(host * 8 // hosts, (host + 1) * 8 // hosts),)})
    read = lambda of: np.concatenate([np.stack([b["index"] for b in of(part(host))]) for host in range(hosts)], 1)
    trained, shown = read(lambda p: batches(source, 8, p, 0, n)), read(lambda p: evaluation(source, 8, p))
    assert trained.shape == (n, 8) and [sorted(epoch) for epoch in trained.reshape(8, n).tolist()] == [list(range(n))] * 8
    assert (trained.ravel() == source.order(np.arange(8 * n))[0]).all()
    assert shown[shown >= 0].tolist() == list(range(n)) and shown.size - n < 8


MESHES = """
import sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from ptmjax.data import loader, masking, order, records, task, text, vocabulary, windows
from ptmjax.types import UserError
assert not {"tensorflow", "seqio", "gin", "torch"} & set(sys.modules)
def corruption(example, rng, lookup):
    tokens = example["tokens"]
    return {"tokens": tokens, "visible": tokens[:, None] > tokens, "label": np.int32(rng.integers(1000))}
rows = [{"tokens": np.arange(i, i + 4, dtype=np.int32)} for i in range(50)]
source = loader.Source(rows, order.Shuffled(50, 1), corruption, 0, "t")
want = source.examples(3 * 16 + np.arange(16))
for shape, local in (((8, 1, 1), 2), ((1, 8, 1), 2), ((2, 2, 2), 4), ((2, 1, 4), 8), ((1, 1, 8), 16)):
    mesh = jax.make_mesh(shape, ("data", "fsdp", "model"))
    sharding = NamedSharding(mesh, P(("data", "fsdp")))
    batch = next(loader.batches(source, 16, sharding, 3, 4))
    for key, x in batch.items():
        assert x.sharding.is_equivalent_to(sharding, x.ndim) and {s.data.shape[0] for s in x.addressable_shards} == {local}, (shape, key)
        np.testing.assert_array_equal(np.asarray(x), want[key])
    last = list(loader.evaluation(source, 16, sharding))[-1]
    assert np.asarray(last["index"]).tolist() == [48, 49] + [-1] * 14
try:
    loader.batches(source, 12, NamedSharding(jax.make_mesh((2, 4, 1), ("data", "fsdp", "model")), P(("data", "fsdp"))))
except UserError as e:
    print(e)
"""


def test_any_mesh_gives_the_same_global_batch():
    env = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=8", JAX_PLATFORMS="cpu", PYTHONPATH=os.pathsep.join(sys.path))
    run = subprocess.run([sys.executable, "-c", MESHES], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "a batch of 12 rows does not divide into the mesh's 8 parts: use a multiple of 8"


# ------------------------------------------------------------------ mixtures
def looked(example, rng, lookup):
    """A draw, and how many records its task has."""
    return copy_tokens(example, rng, lookup) | {"row_weights": np.float32(len(lookup))}


def mixture():
    """Three tasks of 50, 7 and 20 records; those of the second begin with its number."""
    texts = [RECORDS, [{"tokens": np.array([100 + i, 1], np.int32)} for i in range(7)], RECORDS[:20]]
    parts = [Source(records, Shuffled(len(records), 1), looked, 3, name) for records, name in zip(texts, "abc")]
    return parts, loader.Mixed(parts, Mixed((50, 7, 20), (0.5, 0.2, 0.3), 4), "mixture")


def test_rows_of_a_mixture_are_those_of_its_tasks():
    """Randomness by the task's own name, record and epoch; lookup is the task's own text; index counts over all."""
    parts, source = mixture()
    begins = [0, 50, 57]
    record, epoch, _ = source.order(np.arange(640))
    batch = source.examples(np.arange(640))
    assert batch["index"].tolist() == record.tolist() and sorted(set(record)) == list(range(77)) and epoch.max() > 10
    for row, (r, e) in enumerate(zip(record.tolist(), epoch.tolist())):
        number = np.searchsorted(begins, r, "right") - 1
        own = parts[number].made([r - begins[number]], [e], [True])
        equal({key: x[row] for key, x in batch.items()} | {"index": r - begins[number]}, {key: x[0] for key, x in own.items()})
        assert batch["row_weights"][row] == (50, 7, 20)[number]


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_read_the_same_rows_of_a_mixture(monkeypatch, hosts):
    """And so does a run that begins anywhere."""
    _, source = mixture()
    monkeypatch.setattr(loader, "_place", lambda local, *rest: local)
    part = lambda host: python_types.SimpleNamespace(
        shard_shape=lambda shape: shape, addressable_devices_indices_map=lambda shape: {0: (slice(host * 8 // hosts, (host + 1) * 8 // hosts),)})
    read = lambda begin: [list(batches(source, 8, part(host), begin, 40)) for host in range(hosts)]
    for begin in (0, 17):
        for step, held in enumerate(zip(*read(begin)), begin):
            equal({key: np.concatenate([x[key] for x in held]) for key in held[0]}, source.examples(step * 8 + np.arange(8)))


def test_records_of_a_mixture_by_number():
    parts, source = mixture()
    joined = source.records
    assert len(joined) == 77 and [len(list(joined)), joined[50]["tokens"][0], joined[76]["tokens"][0]] == [77, 100, RECORDS[19]["tokens"][0]]
    for beyond in (-1, 77):
        with pytest.raises(IndexError):
            joined[beyond]
    found = list(evaluation(loader.Mixed(parts, Sequential(77), "mixture"), 8, sharding()))
    assert np.concatenate([b["index"] for b in found]).tolist() == [*range(77), -1, -1, -1]


def test_tasks_that_do_not_go_together_are_named(english):
    a, b = (Source(RECORDS, Sequential(50), Masking(english, n), 0, f"of {n}") for n in (12, 13))
    with pytest.raises(UserError, match=r"mixture m: 'segments' of 'of 12' is int32\[12\], of 'of 13' int32\[13\]"):
        loader.Mixed([a, b], Sequential(100), "m")
    c = Source(RECORDS, Sequential(50), Masking(english, 12, types=True), 0, "typed")
    with pytest.raises(UserError, match=r"mixture m: 'types' of 'of 12' is none, of 'typed' int32\[12\]"):
        loader.Mixed([a, c], Sequential(100), "m")

    class Many(list):
        def __len__(self):
            return 2**30

    huge = Source(Many(RECORDS), Sequential(2**30), Masking(english, 12), 0, "huge")
    with pytest.raises(UserError, match="the number of records of m is 2147483648; it must be at most"):
        loader.Mixed([huge, huge], Sequential(5), "m")
