"""The builder by Beam, but for Beam: its jobs run here, and give the bytes of the local builder. tests/beam/ runs them in pipelines."""
import collections
import pickle
from dataclasses import replace

import numpy as np
import pytest

from ptmjax.data import beam, records, text
from ptmjax.data.beam import Beam
from ptmjax.data.cache import PART
from ptmjax.data.masking import Masking
from ptmjax.data.task import Task
from ptmjax.data.windows import Blocks
from ptmjax.types import UserError


@pytest.fixture
def task(tmp_path, english):
    """Four files of which one holds most, with ill-formed bytes and repeated documents, and a shard that stays empty."""
    for number, count in enumerate((3, 60, 1, 20)):
        written = "\n\n".join(f"Document {i % 17} of the sea and the whale {number}. " * (i % 17 % 7 + 1) for i in range(count))
        (tmp_path / f"{number}.txt").write_bytes(written.encode() + b" \xff\n")
    (tmp_path / "0.txt").write_bytes((tmp_path / "0.txt").read_bytes() + b"\n\n" + b"One long document of the sea. " * 1500)
    return Task("sea", str(tmp_path / "*.txt"), english, Blocks(16, minimum=3), Masking(english, 18), holdout=5)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A Beam whose workers are this process, which get what was pickled; jobs run last first, and each twice."""
    def pipeline(self, jobs):
        for job in pickle.loads(pickle.dumps(jobs))[::-1] * 2:
            beam.answer(*job)

    monkeypatch.setattr(Beam, "pipeline", pipeline)
    return Beam("Somewhere", str(tmp_path / "staging"))


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize("change", [{}, {"shards": 1}, {"shards": 30}, {"style": "line"}])
@pytest.mark.parametrize("split", records.SPLITS)
def test_the_bytes_are_those_of_one_machine(task, here, tmp_path, split, change):
    task = replace(task, **change)
    local = records.build(task, split, str(tmp_path / "local"), workers=1, progress=False)
    found = records.build(task, split, str(tmp_path / "beam"), run=here)
    assert found.folder.name == local.folder.name and files(found.folder) == files(local.folder)
    assert local.manifest["counts"]["invalid"] > 0 and local.manifest["counts"]["duplicates"] > 0
    assert task.shards < 8 or split == "validation" or [shard["bytes"] for shard in local.manifest["files"]].count(0) > 0
    assert list((tmp_path / "staging").iterdir()) == [] and not list((tmp_path / "beam").glob(f"{PART}*"))


def test_workers_need_nothing_of_this_machine_but_the_staging_folder(task, here, tmp_path, monkeypatch):
    """The vocabulary lies there; its own path may mean nothing to them."""
    model = tmp_path / "mine.model"
    model.write_bytes(open(task.vocabulary.path, "rb").read())
    task = task.on("sea", type(task.vocabulary)(str(model)))
    local = records.build(task, "train", str(tmp_path / "local"), workers=1, progress=False)
    answer, seen = beam.answer, []

    def without(act, to, there, *job):
        model.rename(tmp_path / "hidden")
        answer(act, to, there, *job)
        (tmp_path / "hidden").rename(model)
        seen.append(there.vocabulary.path)

    monkeypatch.setattr(beam, "answer", without)
    assert files(records.build(task, "train", str(tmp_path / "beam"), run=here).folder) == files(local.folder)
    assert len(seen) == 2 * (4 + 8) and all(path.startswith(str(tmp_path / "staging")) for path in seen)


def test_runs_are_those_that_one_machine_deals(task):
    parts = task.source.parts()
    lengths = [records.measure(task, "train", part, collections.Counter())[0] for part in parts]
    of = [list(records.of_split(task, "train", part, collections.Counter())) for part in parts]
    for shards in (1, 3, 8, 40):
        spans = beam.runs(lengths, shards)
        assert [[d for part, begin, end in span for d in of[part][begin:end]] for span in spans] == list(records.deal(replace(task, shards=shards), "train"))


@pytest.mark.parametrize("limit", [5, 40, 1000])
def test_distinct_documents_in_parts_are_counted_as_in_one(monkeypatch, limit):
    monkeypatch.setattr(text.Distinct, "LIMIT", limit)
    documents = [f"document {i * i % 97}" for i in range(300)]
    whole, merged = text.Distinct(), text.Distinct()
    for part in (documents[:10], documents[10:11], documents[11:]):
        one = text.Distinct()
        for document in part:
            one.add(document)
            whole.add(document)
        merged.merge(one)
    assert (merged.seen, merged.bound, merged.total) == (whole.seen, whole.bound, whole.total) and merged.duplicates == whole.duplicates > 0


def test_faults_are_one_line_and_leave_nothing(task, here, tmp_path, monkeypatch):
    (tmp_path / "2.txt").write_bytes(b"\0")
    with pytest.raises(UserError, match="2.txt is binary"):
        records.build(task, "train", str(tmp_path / "beam"), run=here)
    monkeypatch.setattr(beam, "answer", lambda *job: None)
    with pytest.raises(UserError, match="the workers have left no .*measured-00000.npz: give as --staging a folder"):
        records.build(task, "train", str(tmp_path / "beam"), run=here)
    assert list((tmp_path / "staging").iterdir()) == [] and not list((tmp_path / "beam").glob(f"{PART}*"))


def test_what_was_told_is_read_as_it_was(tmp_path):
    told = {"a": 1 << 64}, {"x": np.arange(3, dtype=np.uint64)}
    beam.answer(lambda: told, str(tmp_path / "x.npz"))
    numbers, arrays = beam.read(str(tmp_path / "x.npz"))
    assert numbers == told[0] and arrays.keys() == {"x"} and arrays["x"].dtype == np.uint64 and arrays["x"].tolist() == [0, 1, 2]
