"""train, eval, fill, inspect and list on a tiny network, in this process; and every fault of a user as one line."""
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from ptmjax.cli import probe, session
from ptmjax.cli.main import main
from ptmjax.training.metrics import read_lines


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a text, its task and a gin file of 2 layers x 16."""
    folder = tmp_path_factory.mktemp("home")
    words = "the quick brown fox jumps over the lazy dog and runs into the deep dark wood".split()
    (folder / "my.txt").write_text("\n\n".join(f"story {i}. " + " ".join(words[(i * 7 + j) % 16] for j in range(60)) for i in range(90)))
    (folder / "tiny_task.py").write_text(
        "from ptmjax.data import registry\nfrom ptmjax.data.registry import register\n"
        "from ptmjax.data.masking import Masking\nfrom ptmjax.data.task import Mixture, Task\n"
        "from ptmjax.data.windows import Blocks\nfrom ptmjax.tasks.corpora import EN_PD_4096, EN_PD_4096_SENTINELS\n"
        "def mlm(name, text, v=EN_PD_4096, **more):\n    m = Masking(v, 32, cap=5, **more)\n"
        "    register(Task(name, text, v, Blocks(30, minimum=4), m, m.readout()))\n"
        f"for name, v in (('typed', EN_PD_4096), ('typed_again', EN_PD_4096), ('typed_other', EN_PD_4096_SENTINELS)):\n"
        f"    mlm(name, {str(folder / 'my.txt')!r}, v, types=True)\n"
        f"mlm('tiny', {str(folder / 'my.txt')!r})\n"
        f"register(Mixture('tiny_mixed', (registry.read('typed'), registry.read('typed_again')), rates=(3, 1)))\n"
        f"mlm('tiny_missing', {str(folder / 'none.txt')!r})\nmlm('tiny_empty', {str(folder / 'empty.txt')!r})\n"
        f"mlm('tiny_binary', {str(folder / 'binary.txt')!r})\n")
    (folder / "empty.txt").write_bytes(b"")
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 40)
    (folder / "tiny.gin").write_text(
        "from __gin__ import dynamic_registration\nimport tiny_task\nfrom ptmjax.cli import experiment\nfrom ptmjax.models import context\n"
        "from ptmjax.nn import block\nfrom ptmjax.nn import stack\nfrom ptmjax.training import loop\ninclude 'bert_demo.gin'\n"
        "D = 16\nSTEPS = 4\ncontext.Context.rotary = 8\nblock.Block.hidden = 32\nblock.Block.rate = 0.1\n"
        "stack.Stack.groups = [(@block.Block, 2), (@block.Final, 1)]\nexperiment.Stage.task = 'tiny'\nexperiment.Stage.batch = 16\n"
        "experiment.Experiment.every = @loop.Every()\nloop.Every.log = 1\nloop.Every.evaluate = 2\nloop.Every.save = 2\n")
    (folder / "two.gin").write_text(
        "from __gin__ import dynamic_registration\nimport tiny_task\nfrom ptmjax.training import loop\ninclude 'bert_base_mlm.gin'\n"
        "TASK_SHORT = 'typed'\nTASK_LONG = 'typed_again'\nV = 4224\nD = 16\nLAYERS = 1\nHEADS = 2\nHIDDEN = 32\nBATCH = 16\n"
        "STEPS_SHORT = 3\nSTEPS_LONG = 2\nWARMUP = 2\nloop.Every.log = 1\n")
    return folder


@pytest.fixture
def ptmjax(home, capsys, monkeypatch):
    """(command, ...) -> (exit code, what it printed, what it said of a fault)."""
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.chdir(home)

    def run(command, *more, cache=True):
        code = main([command, *more, *(["--cache=cache"] if cache else [])])
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


@pytest.fixture(scope="module")
def trained(home):
    """Two steps, in a folder that is only to be copied (`short`)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(home))
        patch.chdir(home)
        assert main(["train", "--gin_file=tiny.gin", "--gin.STEPS=2", "--workdir=trained", "--cache=cache"]) == 0
    return home / "trained"


@pytest.fixture
def short(trained, home):
    """A work folder of its own that stands at step 2."""
    shutil.copytree(trained, home / "short")
    yield home / "short"
    shutil.rmtree(home / "short")


def train(ptmjax, *more):
    return ptmjax("train", "--gin_file=tiny.gin", *more)


def test_train_eval_fill_and_a_second_call(ptmjax, home):
    code, out, err = train(ptmjax, "--workdir=run")
    assert code == 0 and not err
    assert "going on" not in out and "unigram" in out and "'model': 1}, attention by reference\n" in out
    lines = read_lines(home / "run/metrics.jsonl")
    assert [(line["step"], line.get("set")) for line in lines] == [
        (1, None), (2, None), (2, "validation"), (3, None), (4, None), (4, "validation")]
    assert all(line["gap/mlm"] == 0 and line["overflow"] == 0 and not line["skipped"] for line in lines if "set" not in line)
    before = {p: p.stat().st_mtime_ns for p in (home / "run/checkpoints").rglob("*") if p.is_file()}
    code, out, _ = train(ptmjax, "--workdir=run")
    assert code == 0 and "the run is complete, 4 steps" in out
    assert before == {p: p.stat().st_mtime_ns for p in (home / "run/checkpoints").rglob("*") if p.is_file()}
    evals = [ptmjax("eval", "--workdir=run", *more) for more in ([], ["--batch=8"], ["--mesh=data=4,model=2"])]
    found = [json.loads(out.splitlines()[-1]) for _, out, _ in evals]
    assert len({f["records"] for f in found}) == 1 and found[0]["records"] == lines[-1]["records"]
    np.testing.assert_allclose([f["mlm"] for f in found], lines[-1]["mlm"], rtol=1e-5)
    code, out, _ = ptmjax("fill", "--workdir=run", "--top=3", "the quick [MASK] fox [MASK]", "the [MASK]")
    assert code == 0 and len(out.splitlines()) == 1 + 3 + 2
    chances = [float(word.removesuffix("%")) for word in out.splitlines()[2].split()[1::2]]
    assert len(chances) == 3 and chances == sorted(chances, reverse=True) and sum(chances) <= 100 and "%" in out


def test_a_mixture_is_a_task_to_every_command(ptmjax, home):
    """Trained and stopped half-way, it ends as if it had not been; each task is evaluated by itself, and all together."""
    mixed = ["--gin.Stage.task='tiny_mixed'", "--gin.Experiment.best='validation/typed_again/loss'"]
    code, out, err = train(ptmjax, "--workdir=mixed", *mixed)
    assert code == 0 and not err and "tiny_mixed: 75.0% typed, 25.0% typed_again" in out and "   typed_again" in out, out + err
    lines, whole = read_lines(home / "mixed/metrics.jsonl"), (home / "mixed/metrics.jsonl").read_bytes()
    sets = ["validation/typed", "validation/typed_again", "validation"]
    assert [(line["step"], line.get("set")) for line in lines] == [(1, None), *((2, s) for s in (None, *sets)), (3, None), *((4, s) for s in (None, *sets))]
    one, other, pooled = lines[-3:]
    assert pooled["records"] == one["records"] + other["records"] and pooled["loss"] == pytest.approx((one["loss"] + other["loss"]) / 2, abs=0.05)
    summary = json.loads((home / "mixed/summary.json").read_text())
    assert summary["loss"] == pooled["loss"] and summary["tasks"]["typed"]["loss"] == one["loss"]
    shutil.rmtree(home / "mixed/checkpoints/4")
    code, out, _ = train(ptmjax, "--workdir=mixed", *mixed)
    assert code == 0 and "going on from step 2 of 4" in out and (home / "mixed/metrics.jsonl").read_bytes() == whole
    found = json.loads(ptmjax("eval", "--workdir=mixed")[1].splitlines()[-1])
    assert found["loss"] == pytest.approx(pooled["loss"], rel=1e-5) and found["validation/typed"]["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert ptmjax("fill", "--workdir=mixed", "the quick [MASK] fox")[0] == 0 and ptmjax("report", "mixed", "--out=mixed_report", cache=False)[0] == 0
    code, out, _ = train(ptmjax, "--workdir=never", "--dry_run", *mixed)
    assert code == 0 and "tiny_mixed" in out and "times the text" in out
    code, out, _ = ptmjax("inspect", "--gin_file=tiny.gin", "--examples=1", *mixed)
    assert code == 0 and "of typed\n" in out and "of typed_again\n" in out and out.count("shown as [MASK], of scored") == 2
    code, out, _ = ptmjax("compile", "--gin_file=tiny.gin", "--topology=cpu:8", "--json", mixed[0], cache=False)
    assert code == 0 and json.loads(out)["task"] == "tiny_mixed"
    assert ptmjax("cache", "--gin_file=tiny.gin", mixed[0])[1].count("typed") >= 4
    for command, more in (("inspect", ["--data=my.txt"]), ("train", ["--workdir=never", "--gin.Stage.streams=True"])):
        code, _, err = ptmjax(command, "--gin_file=tiny.gin", *mixed, *more)
        assert code == 2 and len(err.splitlines()) == 1 and "mixture" in err, err


def of(found):
    """What a command printed as JSON."""
    code, out, err = found
    assert code == 0, err
    return json.loads(out.splitlines()[-1])


def test_eval_of_another_task_by_a_head_with_its_rows(ptmjax, home, trained):
    """The masks are those of seed 0 and of that task, whatever the run's."""
    own, other = of(ptmjax("eval", "--workdir=trained")), ["--workdir=trained", "--task=typed", "--head=mlm"]
    found = of(ptmjax("eval", *other, f"--rows={home / 'rows.npz'}"))
    assert own["records"] == found["records"] and own["mlm"] != found["mlm"] and found["overflow"] == 0 and found["step"] == 2
    with np.load(home / "rows.npz") as held:
        for name in ("mlm", "accuracy"):
            assert held[f"{name}/value"].sum() / held[f"{name}/weight"].sum() == pytest.approx(found[name], rel=1e-5, abs=1e-7)
        assert len(held["document"]) == found["records"] > len(set(held["document"])) >= 1
    for words, fault in ((["--task=tinny"], "task 'tinny' is not registered"), (["--task=typed_other"], "--task=typed_other has another vocabulary than tiny"),
                         (["--head=rtd"], "--head=rtd: no networks of the run have it, one must; there is mlm of model")):
        code, _, err = ptmjax("eval", "--workdir=trained", *words)
        assert code == 2 and fault in err and err.count("\n") == 1


def test_probe(ptmjax, home, trained):
    words = ["--workdir=trained", "--most=16"]
    found = of(ptmjax("probe", *words, f"--rows={home / 'probe.npz'}"))
    assert {name for name, x in found.items() if isinstance(x, float)} == set(probe.NUMBERS) and found["trained_on"] == 5 * (16 + 4)
    assert found["blocks"] == 1039 + 216 + 251 + 116 + 632 and found["majority"] == 1039 / 2254 and set(found["recall"]) == {"novel", "law", "history", "poetry", "address"}
    assert found["balanced_accuracy"] == pytest.approx(np.mean(list(found["recall"].values()))) and found["words_balanced_accuracy"] > 0.3 > found["chance"]
    with np.load(home / "probe.npz") as held:
        for name in ("accuracy", "balanced_accuracy"):
            assert held[f"{name}/value"].sum() / held[f"{name}/weight"].sum() == pytest.approx(found[name])
        assert len(set(held["document"])) == 16
    code, _, err = ptmjax("probe", "--workdir=trained", "--labels=en_pd_part")
    assert code == 2 and "--labels is 'en_pd_part'; it may be one of 'en_pd_parts_16'" in err


def test_the_best_step_is_kept_and_read(ptmjax, home):
    """The rate is such that the first evaluation is the best; --step reads it, or any other that is there."""
    best = ["--gin.Experiment.best='validation/loss'", "--gin.Experiment.keep=1", "--gin.STEPS=8", "--gin.Every.save=4"]
    code, out, err = train(ptmjax, "--workdir=best", *best, "--gin.linear.peak=300.0", "--gin.WARMUP=7")
    assert code == 0, out + err
    losses = {line["step"]: line["loss"] for line in read_lines(home / "best/metrics.jsonl") if "set" in line}
    least = min(losses, key=losses.get)
    assert list(losses) == [2, 4, 6, 8] and least < 8
    assert sorted(p.name for p in (home / "best/checkpoints").iterdir()) == [str(least), "8"]
    for which, step in ((f"--step={least}", least), ("--step=best", least), ("--step=8", 8)):
        code, out, _ = ptmjax("eval", "--workdir=best", which)
        found = json.loads(out.splitlines()[-1])
        assert code == 0 and found["step"] == step and found["loss"] == pytest.approx(losses[step], rel=1e-6)
    code, out, _ = ptmjax("fill", "--workdir=best", "--step=best", "a [MASK]")
    assert code == 0 and f"step {least} of best" in out
    for which in ("7", "-1", "bets", ""):
        code, _, err = ptmjax("export", "--workdir=best", f"--step={which}", "--to=nowhere")
        assert code == 2 and err.count("\n") == 1 and f"--step={which} is no checkpoint: name one that is there; " in err
        assert err.endswith(f"holds step {least}, step 8\n")
    code, out, _ = train(ptmjax, "--workdir=best", *best, "--gin.linear.peak=300.0", "--gin.WARMUP=7", "--gin.Experiment.best='validation/mlm'", "--gin.Experiment.keep=3")
    assert code == 0 and "the run is complete" in out  # both may change
    assert ptmjax("eval", "--workdir=best", "--step=best")[0] == 0


def test_a_run_begins_with_another(ptmjax, home, short):
    """With a rate that moves nothing it evaluates as that other; a shallower one takes the layers that it is told to."""
    begin = ["--gin.Experiment.init_from='short'", "--gin.linear.peak=1e-30", "--gin.STEPS=1", "--gin.WARMUP=0"]
    code, out, err = train(ptmjax, "--workdir=again", *begin)
    assert code == 0 and "short, step 2: " in out and " are loaded" in out and "is new" not in out, out + err
    last = lambda folder: [line for line in read_lines(home / folder / "metrics.jsonl") if "set" in line][-1]
    assert last("again")["loss"] == pytest.approx(last("short")["loss"], rel=1e-6)
    shallow = [*begin, "--gin.Stack.groups=[(@block.Block, 1), (@block.Final, 1)]"]
    code, _, err = train(ptmjax, "--workdir=shallow", *shallow)
    assert code == 2 and err.count("\n") == 1 and "say which by Experiment.renames" in err and not (home / "shallow").exists()
    layers = "--gin.Experiment.renames={'model/stack/groups/0': 'model/stack/groups/0[1]'}"
    code, out, err = train(ptmjax, "--workdir=shallow", *shallow, layers)
    assert code == 0 and " are loaded" in out, out + err
    shutil.rmtree(home / "again")
    told = json.loads((short / "data.json").read_text())
    (short / "data.json").write_text(json.dumps([told[0] | {"vocabulary": "another"}]))
    code, _, err = train(ptmjax, "--workdir=again", *begin)
    assert code == 2 and err.count("\n") == 1 and "short has another vocabulary than tiny, its model/embedder/parts/tokens/table" in err
    assert not (home / "again").exists()
    without = "--gin.Experiment.renames={'model/embedder/parts/tokens/table': '', 'model/heads/mlm/bias': ''}"
    assert train(ptmjax, "--workdir=again", *begin, without)[0] == 0
    code, _, err = train(ptmjax, "--workdir=never", "--gin.Experiment.init_from='.'", "--gin.Experiment.renames={'model': 'model'}")
    assert code == 2 and err.count("\n") == 1 and "Experiment.renames is for the work folder of a run, . is none" in err


def test_no_best_step(ptmjax, short):
    code, _, err = ptmjax("eval", "--workdir=short", "--step=best")
    assert code == 2 and err.count("\n") == 1 and "the run has no Experiment.best by which one is" in err and "holds step 2" in err


def test_the_saved_configuration_is_the_run(ptmjax, home):
    """Training again from the config.gin that a run wrote gives the same first losses."""
    assert train(ptmjax, "--workdir=first", "--gin.STEPS=2")[0] == 0
    assert ptmjax("train", "--gin_file=first/config.gin", "--workdir=second")[0] == 0
    assert (home / "first/metrics.jsonl").read_bytes() == (home / "second/metrics.jsonl").read_bytes()
    assert (home / "first/config.gin").read_text() == (home / "second/config.gin").read_text()


def test_inspect_and_list(ptmjax):
    code, out, _ = ptmjax("inspect", "--gin_file=tiny.gin", "--examples=2", "--sample=64")
    assert code == 0 and out.count("original") == 2 and "[MASK]" in out and "[16, 32]" in out
    code, out, _ = ptmjax("inspect", "--gin_file=tiny.gin", "--readout", "--examples=0")
    assert code == 0 and out.count("1.0000") == 1  # of the scored places of the readout, all are [MASK]
    code, out, _ = ptmjax("list", cache=False)
    assert code == 0 and "bert_demo.gin" in out and "1,338,752" in out


def test_list_as_json_tells_papers_and_axes(ptmjax):
    code, out, err = ptmjax("list", "--json")
    found = {run["gin_file"]: run for run in json.loads(out)}
    assert code == 0 and {run["paper"] for run in found.values()} >= {"1810.04805", "1910.10683", "2003.10555"}, err
    bert, t5, electra = (found[f"{name}.gin"] for name in ("bert_base", "t5_small", "electra_small"))
    assert (bert["parameters"], t5["parameters"]) == (110_106_428, 60_506_624)
    assert bert["networks"]["model"] == {"embedder": ["positions", "tokens", "types"], "heads": {"mlm": "VocabularyHead", "nsp": "Classifier"},
                                         "mask": "full", "rotary": None, "bias": None, "stack": ["12 x Block"]}
    assert [(stage["corruption"], stage["losses"]) for stage in bert["stages"]] == [("Pairs", ["mlm", "nsp"])] * 2
    assert t5["networks"]["model"]["decoder"]["mask"] == "causal" and t5["networks"]["model"]["bias"] == "Relative" and t5["optimizer"] == "Adafactor"
    assert set(electra["networks"]) == {"generator", "discriminator"} and electra["ties"]["discriminator/embedder"] == "generator/embedder"


@pytest.mark.parametrize("more, words", [
    (["--gin.Block.hiden=3"], "hidden"),
    (["--gin.Blok.hidden=3"], "Block"),
    (["--gin.STEPZ=3"], "STEPS"),
    (["--gin.Stage.batch='16'"], "16"),
    (["--gin.Stage.steps=2.5"], "2.5"),
    (["--gin.generator/Block.hidden=8"], "generator"),
    (["--gin_file=bert_demmo.gin"], "bert_demo.gin"),
    (["--gin.Experiment.mesh='data=3'"], "8"),
    (["--gin.Experiment.mesh='data=2,fdsp=4'"], "fsdp"),
    (["--gin.Stage.batch=12"], "12 rows"),
    (["--gin.Stage.micro=5"], "micro"),
    (["--gin.Stage.task='tinny'"], "tiny"),
    (["--gin.Stage.task='tiny_missing'"], "none.txt"),
    (["--gin.Stage.task='tiny_empty'"], "empty.txt"),
    (["--gin.Stage.task='tiny_binary'"], "binary.txt"),
    (["--gin.Block.act='gellu'"], "gelu"),
    (["--gin.Block.place='post-ln'"], "pre"),
    (["--gin.Experiment.ties={'model/heads/mlm/tabel': 'model/embedder/parts/tokens/table'}"], "model/heads/mlm/tabel"),
    (["--gin.Stage.frozen=['model/embeder/*']"], "model/embeder/*"),
    (["--gin.Experiment.compute='float31'"], "float31"),
    (["--gin.Experiment.fsdp='optimiser'"], "Experiment.fsdp is 'optimiser'"),
    (["--gin.Context.rotary=7"], "7"),
    (["--gin.Context.rotary=6"], "rotary"),
    (["--gin.Block.heads=3"], "3 heads"),
    (["--gin.Embedder.width=24"], "do not fit together"),
    (["--gin.tokens/Table.feature='positions'"], "positions"),
    (["--gin.Stage.batch=0"], "batch"),
    (["--gin.Stage.steps=0"], "steps"),
    (["--gin.Stage.steps=-4"], "steps"),
    (["--gin.Mlm.slots=0"], "slots"),
    (["--gin.STEPS=0"], "--gin.STEPS: Stage.steps is 0"),
    (["--gin.STEPS='a'"], "--gin.STEPS: Stage.steps wants int"),
    (["--gin.RATE=2.0"], "--gin.RATE: Embedder.rate is 2.0"),
    (["--gin.Block.rate=2.0"], "--gin.Block.rate: Block.rate is 2.0"),
    (["--gin.Block.hidden=0"], "--gin.Block.hidden: Block.hidden is 0"),
    (["--gin.D=0"], "--gin.D: "),
    (["--gin.HEADS=0"], "--gin.HEADS: Block.heads is 0"),
    (["--gin.V=0"], "--gin.V: "),
    (["--gin.V=100000000000"], "--gin.V: "),
    (["--gin.V=2000000000"], "GiB a device"),
    (["--gin.Block.hidden=100000000000"], "every size must be"),
    (["--gin.Block.init=-1.0"], "--gin.Block.init: Block.init is -1.0"),
    (["--gin.tokens/Table.init=1e30"], "--gin.tokens/Table.init: Table.init is 1e+30"),
    (["--gin.Block.eps=-1.0"], "--gin.Block.eps: Block.eps is -1.0"),
    (["--gin.Stack.groups=[(@block.Block, 0)]"], "--gin.Stack.groups: Stack.groups is given a count of 0"),
    (["--gin.Experiment.seed=99999999999999999999999"], "--gin.Experiment.seed: Experiment.seed is"),
    (["--gin.Experiment.seed=-1"], "seed is -1"),
    (["--gin.STEPS=100000000000000"], "--gin.STEPS: Stage.steps is"),
    (["--gin.Stage.batch=1000000000000"], "--gin.Stage.batch: Stage.batch is"),
    (["--gin.Stage.batch=2000000000"], "Stage.batch"),
    (["--gin.Mlm.head='foo'"], "head is 'foo'; it may be one of 'mlm'"),
    (["--gin.linear.peak=-1.0"], "--gin.linear.peak: linear.peak is -1.0"),
    (["--gin.AdamW.b1=2.0"], "--gin.AdamW.b1: AdamW.b1 is 2.0"),
    (["--gin.AdamW.eps=-1.0"], "--gin.AdamW.eps: "),
    (["--gin.AdamW.clip=0.0"], "--gin.AdamW.clip: "),
    (["--gin.AdamW.decay=-5.0"], "--gin.AdamW.decay: "),
    (["--gin.linear.peak=1e300"], "--gin.linear.peak: linear.peak is 1e+300; it must be above 0, and a number in float32"),
    (["--gin.Experiment.optimizer=None"], "Experiment.optimizer is None: bind one of"),
    (["--gin.Experiment.init_from=''"], "Experiment.init_from names no folder"),
    (["--gin.Experiment.best='validation/los'"], "'validation/los'; it may be one of 'validation/accuracy', 'validation/loss', 'validation/mlm', "),
    (["--gin.Experiment.best='test/loss'"], "Experiment.best is 'test/loss'; it may be one of 'validation/"),
    (["--gin.Experiment.renames={'model': ''}"], "there is no Experiment.init_from"),
    (["--gin.Stage.batch=@schedules.linear()"], "do not fit together"),
    (["--gin.Experiment.every=@schedules.linear()"], "bind @loop.Every()"),
    (["--gin.Experiment.mesh=@schedules.linear()"], "do not fit together"),
    (["--gin.Stage.frozen=['*']"], "nothing is trained"),
    (["--processes=2"], "--coordinator"),
    (["--sped=3"], "--sped"),
])
def test_a_fault_is_one_line_and_nothing_is_written(ptmjax, tmp_path, more, words):
    code, out, err = train(ptmjax, f"--workdir={tmp_path / 'never'}", *more)
    assert code == 2, out + err
    assert err.startswith("ptmjax: error: ") and len(err.splitlines()) == 1 and "Traceback" not in out + err, err
    assert words in err
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("more, words", [
    (["--gin.TASK_LONG='typed_other'"], "stage 2 reads 'typed_other', whose vocabulary is not that of 'typed', which stage 1 reads"),
    (["--gin.TASK_SHORT='typed_other'"], "give every stage a task of one vocabulary"),
    (["--gin.TASK='tiny'"], "macro TASK is never used; nearest: 'TASK_"),
    (["--gin.STEPS=4"], "macro STEPS is never used; nearest: 'STEPS_"),
    (["--gin.Stage.task='tiny'"], "Stage.task has no effect, what is bound in a scope wins: "),
    (["--gin.Stage.steps=4"], "Stage.steps has no effect, what is bound in a scope wins: "),
    (["--gin.Mlm.slots=4"], "Mlm.slots has no effect, what is bound in a scope wins: "),
    (["--gin.Encoding.terms=[@token.Mlm()]"], "Encoding.terms has no effect, what is bound in a scope wins: "),
    (["--gin.WARMUP=5"], "a warm-up of 5 steps does not fit into 5 steps: shorten it"),
])
def test_what_is_said_of_one_stage_alone_by_mistake_is_refused(ptmjax, tmp_path, more, words):
    """Of a file of two stages: nothing that is meant for both is taken for one, or for none, without a word."""
    code, out, err = ptmjax("train", "--gin_file=two.gin", f"--workdir={tmp_path / 'never'}", *more)
    assert code == 2 and len(err.splitlines()) == 1 and words in err, out + err
    assert not (tmp_path / "never").exists()


def test_a_run_of_skipped_steps_alone_is_no_success(ptmjax):
    code, _, err = train(ptmjax, "--workdir=skipped", "--gin.AdamW.decay=1e30")
    assert code == 2 and err.count("\n") == 1 and "not finite in steps 1 to 4" in err and "Every.nonfinite" in err


def test_the_rate_of_two_stages_falls_to_the_end_of_both(ptmjax, home):
    """Up over 2 steps, down to the 5th; a longer second stage goes on, on its own line down."""
    rates = lambda: [line["rate"] for line in read_lines(home / "two/metrics.jsonl") if "set" not in line]
    assert ptmjax("train", "--gin_file=two.gin", "--workdir=two")[0] == 0
    np.testing.assert_allclose(rates(), [0, 5e-5, 1e-4, 2e-4 / 3, 1e-4 / 3], rtol=1e-5)
    code, out, err = ptmjax("train", "--gin_file=two.gin", "--workdir=two", "--gin.STEPS_LONG=4")
    assert code == 0 and "going on from step 5 of 7" in out, out + err
    np.testing.assert_allclose(rates()[5:], [4e-5, 2e-5], rtol=1e-5)


def test_a_folder_that_is_something_else_is_left_alone(ptmjax, home):
    (home / "other").mkdir()
    (home / "other/thesis.txt").write_text("years of work")
    (home / "texts").mkdir()
    (home / "texts/data.json").write_text('[{"text": "mine"}]')
    assert train(ptmjax, "--workdir=run2", "--gin.STEPS=2")[0] == 0
    before = {p: p.read_bytes() for p in (home / "run2").rglob("*") if p.is_file()}
    for folder, more, words in (("other", [], "no ptmjax run"), ("my.txt", [], "is a file"), ("my.txt/below", [], "my.txt"), ("texts", [], "no ptmjax run"),
                                ("run2", ["--gin.AdamW.b2=0.9"], "b2"), ("run2", ["--gin.Experiment.seed=3"], "seed")):
        code, out, err = train(ptmjax, f"--workdir={folder}", "--gin.STEPS=2", *more)
        assert code == 2 and len(err.splitlines()) == 1 and words in err, (folder, out, err)
    assert {p: p.read_bytes() for p in (home / "run2").rglob("*") if p.is_file()} == before
    assert (home / "other/thesis.txt").read_text() == "years of work" and len(list((home / "other").iterdir())) == 1
    for command in ("eval", "fill"):
        code, _, err = ptmjax(command, "--workdir=other", *(["a [MASK]"] if command == "fill" else []))
        assert code == 2 and "holds no run" in err
    for text, words in (("no blank here", "[MASK]"), ("\udcff [MASK]", "is not UTF-8")):
        code, _, err = ptmjax("fill", "--workdir=run2", text)
        assert code == 2 and words in err and len(err.splitlines()) == 1


def test_settings_that_are_gone_from_the_folder_are_written_again(ptmjax, short):
    (short / "config.gin").write_text("")
    for words in (["train", "--gin_file=tiny.gin", "--gin.STEPS=2"], ["eval"]):
        code, _, err = ptmjax(*words, "--workdir=short")
        assert code == 2 and err.count("\n") == 1 and "short/config.gin holds no settings" in err and "delete it" in err
    (short / "config.gin").unlink()
    assert train(ptmjax, "--workdir=short", "--gin.STEPS=2")[0] == 0
    assert ptmjax("eval", "--workdir=short")[0] == 0


def test_scores_that_are_not_finite_and_lost_metrics_are_told(ptmjax, home, monkeypatch):
    assert train(ptmjax, "--workdir=lost", "--gin.STEPS=2")[0] == 0
    read = session.parameters
    with monkeypatch.context() as patch:
        patch.setattr(session, "parameters", lambda *about: (2, {name: x * np.nan for name, x in read(*about)[1].items()}))
        code, out, err = ptmjax("fill", "--workdir=lost", "the [MASK]")
        assert code == 2 and len(err.splitlines()) == 1 and "the scores of step 2 of lost are not finite" in err and "%" not in out
    (home / "lost/metrics.jsonl").unlink()
    before = (home / "lost/summary.json").read_text()
    code, out, err = train(ptmjax, "--workdir=lost", "--gin.STEPS=2")
    assert code == 2 and len(err.splitlines()) == 1 and "metrics.jsonl holds no evaluation" in err
    assert (home / "lost/summary.json").read_text() == before
    (home / "lost/metrics.jsonl").unlink()
    (home / "lost/timing.jsonl").write_text("")
    code, out, err = train(ptmjax, "--workdir=lost", "--gin.STEPS=4")
    assert code == 0 and not err and "timing.jsonl holds no line of the steps 1 to 2 that are done" in out
    assert "metrics.jsonl is gone: the lines of steps 1 to 2 are lost, the run goes on without them" in out
    assert [line["step"] for line in read_lines(home / "lost/metrics.jsonl")] == [3, 4, 4]


def test_a_longer_run_goes_on(ptmjax, home):
    """And both say, once, that one slot is too few for the scored positions."""
    code, out, _ = train(ptmjax, "--workdir=longer", "--gin.STEPS=2", "--gin.Mlm.slots=1")
    assert code == 0 and out.count("find no slot") == 1 and "step 1: " in out and "changed since" not in out, out
    assert out.index("compiling the step") < out.index("step 1/2") and "records, every scored position shown as [MASK])" in out, out
    code, out, _ = train(ptmjax, "--workdir=longer", "--gin.STEPS=4", "--gin.Mlm.slots=1")
    assert code == 0 and "going on from step 2 of 4" in out and out.count("find no slot") == 1, out
    assert "changed since the last call: STEPS: 2 -> 4 (" in out, out
    assert read_lines(home / "longer/metrics.jsonl")[-1]["step"] == 4


def test_a_run_on_other_data_is_refused(ptmjax, short):
    """Text, vocabulary, row length or holdout changed under a run: one line, nothing is written. An older run has no data.json."""
    saved = short / "data.json"
    good = json.loads(saved.read_text())
    assert len(good) == 1 and good[0]["task"] == "tiny" and len(good[0]["vocabulary"]) == 64
    for name, value, commands, words in (
            ("train", "tiny-train-0", ("train", "eval"), "training records"), ("validation", "tiny-validation-0", ("train", "eval"), "validation"),
            ("rows", {}, ("train", "eval"), "row length"), ("vocabulary", "0" * 64, ("train", "eval", "fill", "export"), "vocabulary"),
            ("examples", "0" * 16, ("train",), "corruption")):
        saved.write_text(json.dumps([good[0] | {name: value}]))
        before = {p: p.read_bytes() for p in short.rglob("*") if p.is_file()}
        for command in commands:
            more = {"train": ["--gin_file=tiny.gin", "--gin.STEPS=4"], "fill": ["a [MASK]"], "export": ["--to=out"]}.get(command, [])
            code, out, err = ptmjax(command, "--workdir=short", *more)
            assert code == 2 and len(err.splitlines()) == 1 and words in err and "other data" in err, (name, command, out, err)
        assert {p: p.read_bytes() for p in short.rglob("*") if p.is_file()} == before
    for text in ("[1]", "{", "\u00ff"):
        saved.write_text(text, encoding="latin-1")
        code, _, err = ptmjax("eval", "--workdir=short")
        assert code == 2 and len(err.splitlines()) == 1 and "data.json" in err
    saved.unlink()
    for rows, words in (("99999999999999", "batch is 99999999999999"), ("2000000000", "memory of this machine")):
        code, _, err = ptmjax("eval", "--workdir=short", f"--batch={rows}")
        assert code == 2 and len(err.splitlines()) == 1 and words in err
    assert ptmjax("eval", "--workdir=short")[0] == 0 and not saved.exists()
    assert train(ptmjax, "--workdir=short", "--gin.STEPS=2")[0] == 0 and json.loads(saved.read_text()) == good


LOCKER = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"


def test_one_training_run_at_a_time(ptmjax, short):
    """The second is told; eval and fill go on beside the first; after kill -9 nothing is in the way."""
    before = {p: p.read_bytes() for p in short.rglob("*") if p.is_file()}
    other = subprocess.Popen([sys.executable, "-c", LOCKER, str(short / "train.lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"held\n"
        code, out, err = train(ptmjax, "--workdir=short", "--gin.STEPS=4")
        assert code == 2 and len(err.splitlines()) == 1 and "is at work there" in err and f"process {os.getpid()}" in err, out + err
        assert {p: p.read_bytes() for p in short.rglob("*") if p.is_file()} == before
        assert ptmjax("fill", "--workdir=short", "a [MASK]")[0] == 0
    finally:
        other.kill()
        other.communicate()
    code, out, _ = train(ptmjax, "--workdir=short", "--gin.STEPS=4")
    assert code == 0 and "going on from step 2 of 4" in out


def test_fewer_steps_than_are_done_are_refused(ptmjax, short):
    """And where a saved step was never evaluated, what is shown says of which step it is."""
    before = {p: p.read_bytes() for p in short.rglob("*") if p.is_file()}
    code, out, err = train(ptmjax, "--workdir=short", "--gin.STEPS=1")
    assert code == 2 and len(err.splitlines()) == 1 and "stands at step 2" in err and "end at 1" in err, out + err
    assert {p: p.read_bytes() for p in short.rglob("*") if p.is_file()} == before
    *first, last = read_lines(short / "metrics.jsonl")
    assert last["set"] == "validation" and last["step"] == 2
    (short / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [first[0], last | {"step": 1}, *first[1:]]))
    code, out, _ = train(ptmjax, "--workdir=short", "--gin.STEPS=2")
    assert code == 0 and "stands at step 2 and was last evaluated at step 1" in out and "unigram" in out, out
    (short / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in first))
    code, out, err = train(ptmjax, "--workdir=short", "--gin.STEPS=2")
    assert code == 2 and "holds no evaluation" in err and "ptmjax eval" in err and "unigram" not in out, out + err
