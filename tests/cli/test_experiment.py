"""What a stage takes."""
import collections
import dataclasses
import os
import types
from functools import partial as part
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from ptmjax.cli import folder, readout
from ptmjax.cli.experiment import Data, Experiment, Kept, Stage, physical_memory
from ptmjax.cli.own import Own
from ptmjax.cli.part import few, warnings
from ptmjax.data import loader, registry
from ptmjax.data.choices import Words
from ptmjax.data.masking import Masking
from ptmjax.data.order import Sequential
from ptmjax.data.task import Mixture, Task
from ptmjax.data.vocabulary import SentencePiece
from ptmjax.data.windows import Blocks
from ptmjax.data.wordpiece import WordPiece
from ptmjax.models.embedders import Embedder, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.objectives.base import Encoding
from ptmjax.objectives.token import Mlm
from ptmjax.training.build import Build
from ptmjax.training.optimizer import AdamW
from ptmjax.training.schedules import constant
from ptmjax.types import UserError

V = SentencePiece(str(Path(__file__).parents[2] / "tasks/shipped/en_pd_4096.model"))


def stage(**more):
    return Stage("static", Encoding([Mlm(5)]), steps=1, batch=8, **more)


def test_numbers_are_checked():
    for name in ("steps", "batch", "micro", "heldout", "dupe_factor"):
        with pytest.raises(UserError, match=f"{name} is 0"):
            Stage(**{**dict(task="t", objective=Encoding([Mlm(5)]), steps=1, batch=8), name: 0})
    assert stage().dupe_factor is None and stage(dupe_factor=1).dupe_factor == 1


def test_what_a_stage_is_trained_on_is_told_by_what_comes_out(tmp_path, monkeypatch):
    """A rate, a share or a seed changed under a run is seen; the same again is the same."""
    text = tmp_path / "t.txt"
    text.write_text("\n\n".join(f"Document {i} of the sea and the whale, and of more." for i in range(60)))

    def found(seed=3, **more):
        task = Task("static", str(text), V, Blocks(16, minimum=12), Masking(V, 18, **more), holdout=6)
        monkeypatch.setattr(Data, "task", task)
        return folder.described(Data(stage(), seed, tmp_path / "cache"))

    plain = found()
    assert found() == plain
    for more in (dict(rate=0.5), dict(mask=0.7), dict(random=0.2), dict(seed=4)):
        other = found(**more)
        assert other["examples"] != plain["examples"] and {**other, "examples": 0} == {**plain, "examples": 0}


def test_a_work_folder_keeps_the_vocabulary_and_names_the_records(tmp_path, monkeypatch):
    """Of a task whose vocabulary is a file of the user's, which then is gone, and the text with it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "whale", "##s", "A"]) + "\n")
    (tmp_path / "t.txt").write_text("\n\n".join(f"sea whale whales sea {i}" for i in range(60)))
    vocabulary = WordPiece(str(tmp_path / "vocab.txt"), lower=False)
    task = Task("static", str(tmp_path / "t.txt"), vocabulary, Blocks(16), Masking(vocabulary, 18), holdout=6)
    monkeypatch.setattr(registry, "read", lambda name: task)
    data = Data(stage(), 3, tmp_path / "cache")
    folder.write(epath.Path(tmp_path / "run"), [folder.described(data)], vocabulary, False)
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"config.gin", "data.json", "vocabulary.txt"}
    for name in ("vocab.txt", "t.txt"):
        (tmp_path / name).unlink()
    monkeypatch.setattr(registry, "read", lambda name: dataclasses.replace(task, vocabulary=WordPiece(str(tmp_path / "vocab.txt"), lower=False)))
    kept = folder.kept(epath.Path(tmp_path / "run"), 0)
    again = Data(stage(), 3, tmp_path / "cache", kept=kept)
    assert again.task.vocabulary.encode("A sea").tolist() == [8, 5] and [len(x) for x in (again.training, again.validation)] == [len(x) for x in (data.training, data.validation)]
    folder.check_vocabulary(epath.Path(tmp_path / "run"), again, 0)
    for other in (Data(stage(), 3, tmp_path / "empty", kept=kept), Data(stage(), 3, tmp_path / "cache")):
        with pytest.raises(UserError, match="t.txt does not exist|vocab.txt cannot be read"):
            other.prepare()
    (tmp_path / "run" / "vocabulary.txt").unlink()
    assert folder.kept(epath.Path(tmp_path / "run"), 0) == (None, kept.records) and folder.kept(epath.Path(tmp_path / "run"), 1) == Kept()


def words(feature="tokens", size=V.size):
    return part(Embedder, {"words": part(Table, feature, size, 8)}, 8)


@pytest.mark.parametrize("embedder, heads, ties, name", [
    (words(size=4000), {}, {}, "model/embedder/parts/words/table"),
    (words(), {"lm": part(VocabularyHead, 4000, 8, act=None, bias=False)}, {}, "model/heads/lm/table"),
    (words(size=4000), {"lm": part(VocabularyHead, 4000, 8)}, {"model/heads/lm/table": "model/embedder/parts/words/table"}, "model/.*"),
])  # fmt: skip
def test_every_parameter_over_a_vocabulary_holds_that_of_the_task(monkeypatch, embedder, heads, ties, name):
    """Whatever the parts are called: an id beyond is read as the last row, or scored as padding."""
    monkeypatch.setattr(Data, "task", types.SimpleNamespace(name="static", vocabulary=V))
    data, build = Data(stage(), 0, Path()), Build({"model": part(Network, embedder, heads=heads)}, ties)
    with pytest.raises(UserError, match=f"^{name} is for 4000 ids, the vocabulary of static has 4096: raise its size "):
        data.check_vocabulary(build)
    enough = {"lm": part(VocabularyHead, 5000, 8, act=None)}
    data.check_vocabulary(Build({"model": part(Network, words(), heads=enough)}))


def test_dupe_factor_is_of_training_alone(tmp_path, monkeypatch):
    text = tmp_path / "t.txt"
    text.write_text("\n\n".join(f"Document {i} of the sea and the whale, and of more." for i in range(60)))
    task = Task("static", str(text), V, Blocks(16, minimum=12), Masking(V, 18, rate=0.5), holdout=6)
    monkeypatch.setattr(Data, "task", task)
    static, fresh = (Data(stage(dupe_factor=n), 3, tmp_path / "cache") for n in (2, None))
    n = len(static.training)
    assert static.heldout_source.dupe_factor is None and static.source.dupe_factor == 2

    def epoch(data, e):
        made = data.source.examples(e * n + np.arange(n))
        return made["weights"][np.argsort(made["index"])]

    assert (epoch(static, 0) == epoch(static, 2)).all() and (epoch(static, 1) == epoch(static, 3)).all()
    assert (epoch(static, 0) != epoch(static, 1)).any(1).mean() > 0.9
    assert (epoch(fresh, 1) == epoch(static, 1)).all() and (epoch(fresh, 0) != epoch(fresh, 2)).any(1).mean() > 0.9


def sea(tmp_path, monkeypatch, **more):
    text = tmp_path / "t.txt"
    text.write_text("\n\n".join(f"Document {i} of the sea and the whale, and of more." for i in range(60)))
    monkeypatch.setattr(Data, "task", Task("static", str(text), V, Blocks(16, minimum=12), Masking(V, 18, rate=0.5), holdout=6))
    return Experiment({}, [stage(**more), stage(**more), stage(**more)], AdamW(constant(1e-3)), seed=2**32 - 1).data(tmp_path / "cache")


@pytest.mark.parametrize("more", [{}, {"streams": True}, {"dupe_factor": 1}])
def test_a_later_stage_on_the_same_task_reads_other_batches_and_masks(tmp_path, monkeypatch, more):
    data = sea(tmp_path, monkeypatch, **more)
    n = len(data[0].training)
    found = [d.source.examples(np.arange(n)) for d in data]
    alone = Data(data[0].stage, 2**32 - 1, tmp_path / "cache").source.examples(np.arange(n))
    assert all((found[0][key] == alone[key]).all() for key in alone), "the first stage is as if there were no other"
    weights = [np.stack([x["weights"][x["index"] == record][0] for record in set(found[0]["index"]) & set(x["index"])]) for x in found]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        if not more.get("streams"):  # their order is that of the text, whatever the seed
            assert sorted(found[one]["index"]) == sorted(found[other]["index"]) and (found[one]["index"] != found[other]["index"]).mean() > 0.8
            assert (weights[one] != weights[other]).any(1).mean() > 0.9
        assert (found[one]["weights"] != found[other]["weights"]).any(1).mean() > 0.9
    shown = [d.heldout_source.examples(np.arange(3)) for d in data]
    assert all((x[key] == shown[0][key]).all() for x in shown for key in x), "what is held out is the same in all stages"


def test_memory_is_what_a_container_leaves(tmp_path):
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits, own = tmp_path / "cgroup", tmp_path / "own"
    found = lambda: physical_memory(limits, own)
    assert found() == whole, "no control groups"

    def write(path, text):
        (limits / path).parent.mkdir(parents=True, exist_ok=True)
        (limits / path).write_text(text)

    own.write_text("9:name=systemd:/other\n4:memory:/batch/7\n0::/slice/job\n")
    write("memory/memory.limit_in_bytes", "9223372036854771712\n")
    write("slice/job/memory.max", "max\n")
    write("memory/other/memory.limit_in_bytes", "5\n")
    assert found() == whole, "no limits, but of a group that is not ours"
    for path, limit in (("memory.max", 9000), ("memory/memory.limit_in_bytes", 8000), ("slice/memory.max", 7000), ("slice/job/memory.max", 6000),
                        ("memory/batch/7/memory.limit_in_bytes", 4000)):
        write(path, f"{limit}\n")
        assert found() == limit


def test_rows_without_a_target_are_told(tmp_path, monkeypatch):
    """Pitfall 4: where every word is longer than what is masked of a row the loss is 0, as if all had been learnt."""
    text, found = tmp_path / "t.txt", {}
    for known in (60, 40, 0):
        text.write_text("\n\n".join(f"of the sea {i}" if i < known else f"zqxjkv{i}" for i in range(60)))
        monkeypatch.setattr(Data, "task", Task("static", str(text), V, Blocks(16), Masking(V, 18, choice=Words()), holdout=6))
        found[known] = Data(stage(), 3, tmp_path / f"cache{known}").parts[0].without_target()
    assert found[60] == [] and len(found[40]) == 1 and found[0][0].startswith("warning: 100.0% of rows have nothing that is scored")
    label = lambda example, rng, lookup: {"label": np.int32(1)}
    assert Data(stage(corruption=label, readout=label), 3, tmp_path / "cache0").parts[0].without_target() == []


@pytest.mark.parametrize("counts, told", [
    ({"documents": 100, "tokens": 1000, "unknown tokens": 10, "duplicates": 5, "dropped": 10, "dropped_tokens": 111, "invalid bytes": 1}, []),
    ({"documents": 100, "tokens": 1000, "unknown tokens": 11}, ["1.1% of tokens are characters that the vocabulary lacks"]),
    ({"documents": 100, "tokens": 1000, "duplicates": 6, "dropped": 11}, ["6.0% of documents are documents that repeat", "11.0% of documents are documents too short"]),
    ({"documents": 100, "tokens": 1000, "dropped_tokens": 250, "invalid bytes": 2}, ["20.0% of tokens are tokens that fill no record", "0.2% of tokens are bytes that are not UTF-8"]),
    ({"documents": 100, "tokens": 1000, "lone_sentences": 10}, []),
    ({"documents": 100, "tokens": 1000, "lone_sentences": 100}, ["100.0% of documents are documents of one sentence, so that no next one follows"]),
    ({}, []),
])
def test_a_share_of_the_text_that_is_high_is_told(counts, told):
    lines = warnings(collections.Counter(counts))
    assert len(lines) == len(told)
    for line, what in zip(lines, told):
        assert line.startswith(f"warning: {what}")


def test_hardly_anything_held_out_is_told():
    assert few(10) == [] and few(9)[0].startswith("warning: 9 validation records: what is held out says little: ") and "1 validation record:" in few(1)[0]


# ------------------------------------------------------------------ mixtures
def mixed(tmp_path, monkeypatch, rates=(3, 1), **more):
    """A stage on two texts, of which the second is shorter."""
    for name, n in (("long", 120), ("short", 40)):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(f"Document {i} of the {name} sea and the whale, and of more." for i in range(n)))
    tasks = [Task(name, str(tmp_path / f"{name}.txt"), V, Blocks(16, minimum=12), Masking(V, 18, rate=0.5), holdout=6) for name in ("long", "short")]
    mixture = Mixture("both", tuple(tasks), rates)
    monkeypatch.setattr(registry, "read", lambda name: mixture)
    return Data(stage(**more), 3, tmp_path / "cache"), tasks


def test_a_stage_on_a_mixture(tmp_path, monkeypatch):
    """Its rows are those of its tasks, at their rates; each is cached as by itself, and described."""
    data, tasks = mixed(tmp_path, monkeypatch)
    record, epoch, _ = data.source.order(np.arange(640))
    n = len(data.parts[0].training)
    assert (record < n).sum() == 480 and data.shares == {"long": 0.75, "short": 0.25} and len(data.training) == n + len(data.parts[1].training)
    alone = loader.Source(data.parts[1].training, Sequential(1), tasks[1].corruption, 3, "short")
    made = data.source.examples(np.arange(64))
    for row in np.flatnonzero(record[:64] >= n):
        own = alone.made([record[row] - n], [epoch[row]], [True])
        assert all((own[key][0] == made[key][row]).all() for key in own if key != "index") and made["index"][row] == record[row]
    assert data.spec == data.source.spec == data.heldout_source.spec and data.features == tasks[0].corruption.features
    told = folder.described(data)
    assert told["task"] == "both" and told["rates"] == {"long": 0.75, "short": 0.25}
    assert [name.split("-")[0] for name in told["train"]] == ["long", "short"] == [name.split("-")[0] for name in told["validation"]]
    assert data.told().startswith("both: 75.0% long, 25.0% short\nlong: ") and "\nshort: " in data.told()
    other, _ = mixed(tmp_path, monkeypatch, (1, 1))
    assert folder.described(other) == told | {"rates": {"long": 0.5, "short": 0.5}, "examples": folder.sample(other)}


def test_what_is_held_out_of_a_mixture(tmp_path, monkeypatch):
    """Each task by itself, and all of it: every record once."""
    data, _ = mixed(tmp_path, monkeypatch, heldout=9)
    rows = NamedSharding(jax.make_mesh((1,), ("data",), devices=jax.devices()[:1]), PartitionSpec("data"))
    sets = {name: list(of(rows, 4)) for name, of in data.heldouts.items()}
    assert list(sets) == ["validation/long", "validation/short", "validation"]
    seen = {name: [i for batch in batches for i in batch["index"].tolist() if i >= 0] for name, batches in sets.items()}
    n = min(9, len(data.parts[1].validation))
    assert seen == {"validation/long": [*range(9)], "validation/short": [*range(n)], "validation": [*range(9), *range(n)]}
    assert readout.weight_of_ids(data, V.size).sum() == sum(float(batch["weights"].sum()) for batch in sets["validation"])
    assert readout.baselines(data)["unigram"] > 0 and "no_context_bound" not in readout.baselines(data)


def test_what_a_work_folder_keeps_of_a_mixture(tmp_path, monkeypatch):
    data, _ = mixed(tmp_path, monkeypatch)
    (tmp_path / "run").mkdir()
    folder.write(epath.Path(tmp_path / "run"), [folder.described(data)], V, False)
    kept = folder.kept(epath.Path(tmp_path / "run"), 0)
    for name in ("long", "short"):
        (tmp_path / f"{name}.txt").unlink()
    again = Data(stage(), 3, tmp_path / "cache", kept=kept)
    again.prepare()
    assert folder.described(again) == folder.described(data) and again.task.vocabulary.path == str(tmp_path / "run/vocabulary.model")


def test_what_a_mixture_has_not(tmp_path, monkeypatch):
    data, _ = mixed(tmp_path, monkeypatch, streams=True)
    with pytest.raises(UserError, match="Stage.streams: the rows of 'both', a mixture, do not go on"):
        data.source
    own = Own(str(tmp_path / "long.txt"))
    with pytest.raises(UserError, match="'both' is a mixture of long, short, each of a text of its own"):
        own.task(data.task, 100, tmp_path)
