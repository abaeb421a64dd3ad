import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from ptmjax.data import records
from ptmjax.data.masking import Masking
from ptmjax.data.records import Records, build, deal, pack, unpack
from ptmjax.data.task import Task
from ptmjax.data.text import documents, split_of
from ptmjax.data.windows import Blocks, Stream
from ptmjax.types import UserError


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"Document {i} of the sea and the whale. " * (i % 7 + 1) for i in range(120)))
    return path


@pytest.fixture
def task(text, english):
    return Task("sea", str(text), english, Blocks(16, minimum=3), Masking(english, 18), holdout=10)


def make(task, folder, **more):
    return build(task, "train", str(folder), **{"workers": 1, "progress": False, **more})


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_records_are_the_cut_of_the_split(task, tmp_path, english):
    found = make(task, tmp_path / "cache")
    texts = [d for d in documents(task.text) if split_of(d, 10) == "train"]
    want = list(task.cut(texts, english))
    assert len(found) == len(want) > 200
    for i, record in enumerate(want):
        assert found[i].keys() == record.keys()
        for key, x in record.items():
            np.testing.assert_array_equal(found[i][key], x)
            assert found[i][key].dtype == x.dtype
    assert sum(1 for _ in found) == len(want)
    with pytest.raises(IndexError):
        found[len(want)]


def test_manifest_counts(task, tmp_path):
    both = [build(task, split, str(tmp_path), workers=1, progress=False) for split in records.SPLITS]
    assert sum(r.manifest["counts"]["documents"] for r in both) == 120
    assert both[1].manifest["counts"]["documents"] == sum(split_of(d, 10) == "validation" for d in documents(task.text)) > 3
    for r in both:
        tokens = sum(len(x["tokens"]) for x in r)
        assert r.manifest["counts"]["tokens"] == tokens == r.counts.sum()
        assert r.counts.tolist() == np.bincount(np.concatenate([x["tokens"] for x in r]), minlength=4096).tolist()
        assert sum(f["records"] for f in r.manifest["files"]) == len(r) and len(r.manifest["files"]) == 8
        assert json.loads((r.folder / "manifest.json").read_text())["schema"] == {"tokens": "int32", "document": "int32"}


def test_any_number_of_workers_gives_the_same_bytes(task, tmp_path):
    one, two = (make(task, tmp_path / str(workers), workers=workers) for workers in (1, 2))
    assert one.folder.name == two.folder.name
    assert files(one.folder) == files(two.folder) and len(files(one.folder)) == 10


def test_reused_until_something_changes(task, tmp_path, text, english, monkeypatch):
    folder = make(task, tmp_path).folder
    before = folder.stat().st_mtime_ns
    assert make(task, tmp_path).folder == folder and folder.stat().st_mtime_ns == before
    assert make(replace(task, corruption=None), tmp_path).folder == folder  # the corruption is not in the records
    changes = [replace(task, cut=Blocks(16, minimum=4)), replace(task, style="line"), replace(task, shards=3), replace(task, holdout=9)]
    assert len({make(t, tmp_path).folder for t in [task, *changes]}) == 5
    assert build(task, "validation", str(tmp_path), progress=False).folder != folder
    monkeypatch.setattr(records, "CODE", records.CODE + 1)
    assert make(task, tmp_path).folder != folder
    monkeypatch.undo()
    text.write_text(text.read_text() + "\n\nmore of the sea and more")
    assert make(task, tmp_path).folder != folder


def test_few_documents_leave_shards_empty(english, tmp_path):
    (tmp_path / "t").write_text("one document of the sea")
    holdout = next(h for h in range(2, 50) if split_of("one document of the sea", h) == "train")
    task = Task("one", str(tmp_path / "t"), english, Blocks(100), None, holdout=holdout)
    assert [len(shard) for shard in deal(task, "train")] == [1] + [0] * 7
    assert len(make(task, tmp_path / "cache")) == 1
    with pytest.raises(UserError, match="no document of its text gives a record of the validation split"):
        build(task, "validation", str(tmp_path / "cache"), workers=1, progress=False)
    assert [p.name.split("-")[1] for p in (tmp_path / "cache").iterdir()] == ["train"]


def test_deal_keeps_order_and_loses_nothing(task):
    for split in records.SPLITS:
        dealt = list(deal(task, split))
        assert len(dealt) == 8 and (all(dealt) or split == "validation")
        assert sum(dealt, []) == [d for d in documents(task.text) if split_of(d, 10) == split]
    assert [r["tokens"].tolist() for r in records.records(task, "train")] == [
        r["tokens"].tolist() for shard in deal(task, "train") for r in task.cut(shard, task.vocabulary)
    ]


def test_stream_records(text, english, tmp_path):
    found = make(Task("lm", str(text), english, Stream(8), None, shards=1), tmp_path)
    assert all(len(r["tokens"]) == 9 for r in found)
    assert all(found[i]["tokens"][-1] == found[i + 1]["tokens"][0] for i in range(len(found) - 1))


def test_serialisation_is_little_endian_and_typed():
    schema = {"tokens": "int32", "spans": "uint16"}
    record = {"tokens": np.array([1, 300], ">i4"), "spans": np.array([], np.uint16)}
    raw = pack(record, schema)
    assert b"\x01\x00\x00\x00\x2c\x01\x00\x00" in raw
    back = unpack(raw, {name: np.dtype(kind) for name, kind in schema.items()})
    assert back["tokens"].tolist() == [1, 300] and back["spans"].dtype == np.uint16 and len(back["spans"]) == 0
    assert not back["tokens"].flags.writeable
    with pytest.raises(ValueError, match="the cut gave columns"):
        pack({"tokens": record["tokens"]}, schema)


def test_threads_and_pickle(task, tmp_path):
    found = make(task, tmp_path)
    want = [r["tokens"].tolist() for r in found]
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(len(found)), 5)).tolist()
    for mine in (pickle.loads(pickle.dumps(found)), Records(str(found.folder))):
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda i: mine[i]["tokens"].tolist(), order)) == [want[i] for i in order]


def test_damaged_caches_are_named(task, tmp_path):
    def damaged(change):
        folder = make(task, tmp_path).folder
        change(folder)
        with pytest.raises(UserError, match=f"delete {folder} and it is built again") as e:
            found = make(task, tmp_path)
            found.counts, [found[i] for i in range(len(found))]
        assert "\n" not in str(e.value)
        subprocess.run(["rm", "-r", str(folder)], check=True)
        return str(e.value)

    shard = "00003-of-00008.array_record"
    cut = lambda folder: (folder / shard).write_bytes((folder / shard).read_bytes()[:-100])
    zeros = lambda folder: (folder / shard).write_bytes(bytes((folder / shard).stat().st_size))

    def flip(folder):
        raw = bytearray((folder / shard).read_bytes())
        raw[100:200] = bytes(b ^ 255 for b in raw[100:200])
        (folder / shard).write_bytes(raw)

    def fewer(folder):  # the manifest says one record more than the file has
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"][3]["records"] += 1
        (folder / "manifest.json").write_text(json.dumps(manifest))

    for change, what in ((cut, "bytes of"), (lambda folder: (folder / shard).unlink(), "has 0 bytes"), (fewer, "records of")):
        assert f"{shard} has " in (said := damaged(change)) and what in said
    for change in (zeros, flip):
        assert shard in damaged(change)
    assert "manifest.json" in damaged(lambda folder: (folder / "manifest.json").unlink())
    for broken in ("{", "{}", "[]", "3", '{"format": 1}', '{"format": 1, "schema": {}, "files": [], "counts": {}}',
                   '{"format": 1, "schema": {}, "files": [3], "counts": {}}', "\udcff"):
        write = lambda folder: (folder / "manifest.json").write_bytes(broken.encode(errors="surrogateescape"))
        assert "manifest.json" in damaged(write), broken
    assert "counts.npy" in damaged(lambda folder: (folder / "counts.npy").write_bytes(b""))
    for other in (lambda ids: ids[:-1], lambda ids: ids ^ 1, lambda ids: ids.astype("m8[s]")):
        change = lambda folder: np.save(folder / "counts.npy", other(np.load(folder / "counts.npy")))
        assert "counts.npy holds other numbers than were counted" in damaged(change)
    with pytest.raises(UserError, match="manifest.json"):
        Records(tmp_path / "nowhere")


def test_killed_builds_leave_no_half_cache(task, tmp_path):
    """kill -9 at several moments; the next build gives what an undisturbed one gives."""
    script = tmp_path / "build.py"
    script.write_text(
        "import pickle, sys, time\n"
        "from ptmjax.data import records\n"
        "real = records.write_shard\n"
        "def slow(*a):\n"
        "    print('shard', flush=True); time.sleep(.05); return real(*a)\n"
        "records.write_shard = slow\n"
        "records.build(pickle.load(open(sys.argv[1], 'rb')), 'train', sys.argv[2], workers=1, progress=False)\n"
    )
    (tmp_path / "task").write_bytes(pickle.dumps(task))
    cache = tmp_path / "cache"
    for shards in (1, 5):
        command = [sys.executable, str(script), str(tmp_path / "task"), str(cache)]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))
        for _ in range(shards):
            assert run.stdout.readline() == b"shard\n"
        run.send_signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
        run.stdout.close()
        assert [p.name for p in cache.iterdir() if not p.name.startswith(".")] == []
        assert len(list(cache.glob(".part-*"))) == 1  # a build removes what the one before left
    assert files(make(task, cache).folder) == files(make(task, tmp_path / "calm").folder)
    assert list(cache.glob(".part-*")) == []


def test_two_builders_at_once(task, tmp_path):
    found = []
    threads = [threading.Thread(target=lambda: found.append(make(task, tmp_path / "cache"))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 3 and len({r.folder for r in found}) == 1
    assert [p.name.startswith("sea-train-") for p in (tmp_path / "cache").iterdir() if p.name != ".digests.json"] == [True]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_line(task, tmp_path, text, workers):
    """Writing past a limit on the size of files fails as writing to a full disk does."""
    text.write_text(text.read_text() * 40)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write the data cache in .*cache .*large.*: make room there"):
            make(replace(task, shards=1), tmp_path / "cache", workers=workers)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "cache").glob("*sea*")) == []
    assert len(make(task, tmp_path / "cache")) > 100


def test_faults_come_out_as_they_are(task, tmp_path, text):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the data cache"):
        make(task, tmp_path / "file" / "cache")
    with pytest.raises(UserError, match="split 'test' is not known"):
        build(task, "test", str(tmp_path))
    text.write_bytes(b"\0")
    with pytest.raises(UserError, match="is binary"):
        make(task, tmp_path / "cache")
    assert list((tmp_path / "cache").glob("*sea*")) == []
    text.unlink()
    with pytest.raises(UserError, match="does not exist"):
        make(task, tmp_path / "cache", workers=2)
