"""What fill and detect make of a vocabulary and of a stage's data."""
from types import SimpleNamespace

import numpy as np
import pytest
from etils import epath
from ptmjax.tasks.corpora import EN_PD_4096, EN_PD_4096_SENTINELS

from ptmjax.cli import config, fill, session
from ptmjax.cli.experiment import Data, Experiment, Stage
from ptmjax.cli.main import main
from ptmjax.data.masking import Masking
from ptmjax.data.task import Task
from ptmjax.objectives.base import Encoding, Objective
from ptmjax.objectives.rtd import Rtd
from ptmjax.objectives.seq2seq import Seq2Seq
from ptmjax.objectives.token import Mlm, Sentence
from ptmjax.types import UserError


def data(corruption=None, vocabulary=EN_PD_4096):
    """A stage whose task's corruption has no types."""
    out = Data(Stage("a task", Objective(), 1, 1, corruption=corruption), 0, "nowhere")
    out.__dict__["task"] = Task("a task", "text", vocabulary, None, Masking(EN_PD_4096, 32, cap=5))
    return out


def test_rows_have_the_columns_of_the_corruption_that_the_stage_uses():
    assert "types" not in session.rows(["a b"], data())
    found = session.rows(["a b"], data(Masking(EN_PD_4096, 32, cap=5, types=True)))
    assert (found["types"] == 0).all() and found["types"].shape == found["tokens"].shape


def test_rows_are_padded_and_marked():
    v = EN_PD_4096
    found = session.rows(["a [MASK]", "a b"], data(), "[MASK]")
    assert found["tokens"].tolist() == [[v.cls, *v.encode("a"), v.mask, v.sep], [v.cls, *v.encode("a"), *v.encode("b"), v.sep]]
    assert found["weights"].tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
    assert not session.rows(["a [MASK]"], data())["weights"].any()  # without a mark it is text


class Lacking:
    """The shipped vocabulary without some symbols."""

    def __init__(self, *names):
        self.names = names

    def __getattr__(self, name):
        return None if name in self.names else getattr(EN_PD_4096_SENTINELS, name)

    def __repr__(self):
        return "Lacking"


def test_symbols_that_a_vocabulary_lacks_are_named():
    with pytest.raises(UserError, match="the vocabulary Lacking has no cls, mask, with which"):
        session.rows(["a [MASK]"], data(vocabulary=Lacking("cls", "mask")), "[MASK]")
    assert session.rows(["a"], data(vocabulary=Lacking("mask")))["tokens"].shape == (1, 3)  # detect needs none
    with pytest.raises(UserError, match="the vocabulary Lacking has no eos, with which"):
        fill.inputs(["a [MASK]"], Lacking("eos"), range(9, 0, -1))


def test_scores_that_are_not_finite():
    session.check_finite([np.ones(3), np.zeros(0)], 3, "there")
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(UserError, match="the scores of step 3 of there are not finite, the run came apart"):
            session.check_finite([np.ones(3), np.array([0, bad])], 3, "there")


def test_which_masked_model_fills():
    assert fill.masked_model(Rtd(slots=3)) == ("generator", "mlm")
    assert fill.masked_model(Encoding([Sentence(), Mlm(3, head="words")], net="student")) == ("student", "words")
    assert fill.masked_model(Encoding([Sentence()])) is fill.masked_model(Seq2Seq()) is fill.masked_model(SimpleNamespace()) is None


@pytest.mark.parametrize("fault, why", [(RuntimeError("Unable to initialize backend 'rocm': none\nmore"), "Unable to initialize backend 'rocm': none"),
                                        (AssertionError(), "no package of jax for them is installed")])
def test_devices_that_are_not_there_are_one_line(monkeypatch, fault, why):
    monkeypatch.setattr(session.jax, "devices", lambda: (_ for _ in ()).throw(fault))
    monkeypatch.setenv("JAX_PLATFORMS", "gpu")
    with pytest.raises(UserError, match=f"JAX_PLATFORMS=gpu: jax finds no such devices \\({why}\\): leave it out") as told:
        session.experiment(["bert_demo.gin"], [])
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("argv, told", [
    (["train", "--gin_file=a.gin", "--workdir=s3://b/run"], "s3://b/run: of addresses with :// only gs:// can be used: mount"),
    (["report", "http://b/run"], "http://b/run: of addresses with :// only gs://"),
    (["train", "--gin_file=a.gin", "--workdir=run", "--cache=gs://b/cache"], "gs://b/cache: this must lie on this machine"),
    (["vocab", "--data=a.txt", "--out=gs://b/vocab.txt"], "gs://b/vocab.txt: this must lie on this machine"),
    (["export", "--workdir=run", "--to=gs://b/model"], "gs://b/model: this must lie on this machine"),
])
def test_addresses_far_away(capsys, monkeypatch, tmp_path, argv, told):
    """None of them becomes a folder "gs:" here."""
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert told in error and error.startswith("ptmjax: error: argument ") and error.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_cache_named_by_the_environment(capsys, monkeypatch):
    monkeypatch.setenv("PTMJAX_CACHE", "gs://b/cache")
    assert main(["train", "--gin_file=a.gin", "--workdir=run"]) == 2
    assert "gs://b/cache: this must lie on this machine" in capsys.readouterr().err


@pytest.mark.parametrize("network", ["Block", "T5Block"])
def test_a_model_that_was_trained_by_another_platforms_kernel_can_be_used_here(tmp_path, network):
    """`fill` and others have no --gin options."""
    gin = {"Block": "bert_demo", "T5Block": "t5_demo"}[network]
    config.load([f"{gin}.gin"], [f"{network}.kernel='splash'"])
    with session.fitting():
        held = config.configured(Experiment)()
    held.build(held.stages[0])
    config.save(tmp_path)
    assert f"{network}.kernel = 'splash'" in (tmp_path / "config.gin").read_text()
    held = session.saved(epath.Path(tmp_path))
    held.build(held.stages[0])
    assert f"{network}.kernel = 'auto'" in config.operative() and "splash" not in config.operative()


def test_the_language_of_a_text(monkeypatch):
    """Numbers of languages where the data have them, padding aside; one that the model does not know is refused."""
    monkeypatch.setattr(Data, "features", ("tokens", "languages"))
    found = session.rows(["a b c", "a"], data(), language=3)
    assert (found["languages"] == 3 * found["segments"]).all() and found["languages"].dtype == np.int32 and "types" not in found
    leaf = SimpleNamespace(sizes=(2, 8))
    fill.check_language(1, SimpleNamespace(leaves={"model/embedder/parts/languages/table": leaf}))
    fill.check_language(0, SimpleNamespace(leaves={}))
    for language, leaves, said in ((2, {"model/embedder/parts/languages/table": leaf}, "2 languages, numbered from 0"), (1, {}, "no embeddings of languages"),
                                   (-1, {}, "--language is -1")):
        with pytest.raises(UserError, match=said):
            fill.check_language(language, SimpleNamespace(leaves=leaves))
