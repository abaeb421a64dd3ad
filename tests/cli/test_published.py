"""T5 and ELECTRA through the commands: train, fill spans, detect, export, begin from a published folder."""
import json

import pytest
import transformers
from ptmjax.tasks.corpora import EN_PD_4096_SENTINELS

from ptmjax.cli.main import main
from ptmjax.training.metrics import read_lines

SMALL = ("D = 16\nLAYERS = 1\nHEADS = 2\nHIDDEN = 32\nSTEPS = 3\nBATCH = 16\nloop.Every.log = 1\nloop.Every.evaluate = 0\nloop.Every.save = 0\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    words = "the quick brown fox jumps over the lazy dog and runs into the deep dark wood".split()
    (folder / "my.txt").write_text("\n\n".join(f"story {i}. " + " ".join(words[(i * 7 + j) % 16] for j in range(60)) for i in range(90)))
    (folder / "small_tasks.py").write_text(
        "from ptmjax.data.registry import register\nfrom ptmjax.data.masking import Masking\nfrom ptmjax.data.spans import Spans\n"
        "from ptmjax.data.task import Task\nfrom ptmjax.data.windows import Blocks, Joined\n"
        "from ptmjax.tasks.corpora import EN_PD_4096, EN_PD_4096_SENTINELS\n"
        f"text = {str(folder / 'my.txt')!r}\nm = Masking(EN_PD_4096, 32, cap=5, mask=.85, random=0.)\ns = Spans(EN_PD_4096_SENTINELS, 24)\n"
        "register(Task('small_rtd', text, EN_PD_4096, Blocks(30, minimum=4), m, m.readout()))\n"
        "register(Task('small_spans', text, EN_PD_4096_SENTINELS, Joined(s.raw, minimum=4), s, s.readout()))\n")
    head = "from __gin__ import dynamic_registration\nimport small_tasks\nfrom ptmjax.models import context\nfrom ptmjax.training import loop\n"
    (folder / "t5.gin").write_text(head + "include 't5_demo.gin'\nTASK = 'small_spans'\nSIZE = 8\n" + SMALL)
    (folder / "electra.gin").write_text(
        head + "include 'electra_demo.gin'\nTASK = 'small_rtd'\nE = 16\nGD = 8\nGHEADS = 1\nGHIDDEN = 16\ncontext.Context.rotary = 8\n" + SMALL)
    return folder


@pytest.fixture
def ptmjax(home, capsys, monkeypatch):
    """(command, ...) -> (exit code, what it printed, what it said of a fault)."""
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.chdir(home)

    def run(*words):
        code = main([*words, "--cache=cache"])
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def last(folder):
    return next(line for line in reversed(read_lines(folder / "metrics.jsonl")) if "set" in line)


def test_t5_fills_spans_is_exported_and_begins_from_what_was_exported(ptmjax, home):
    code, out, err = ptmjax("train", "--gin_file=t5.gin", "--workdir=t5")
    assert code == 0 and not err and "first token of every span" in out and "unigram" in out
    code, out, _ = ptmjax("fill", "--workdir=t5", "--longest=3", "the quick [MASK] fox [MASK]", "[MASK]")
    assert code == 0 and len(out.splitlines()) == 1 + (1 + 2) + (1 + 1) and out.count("%") == 3
    alone = ptmjax("fill", "--workdir=t5", "--longest=3", "[MASK]")[1]
    assert out.splitlines()[-2:] == alone.splitlines()[-2:]
    code, _, err = ptmjax("fill", "--workdir=t5", "--longest=99999", "[MASK]")
    assert code == 2 and err.count("\n") == 1 and "longest is 99999; it must be at most 512" in err
    code, _, err = ptmjax("fill", "--workdir=t5", "[MASK]" * 101)
    assert code == 2 and "has 101 [MASK], the vocabulary has 100 sentinels" in err
    code, out, _ = ptmjax("export", "--workdir=t5", "--to=out/t5")
    assert code == 0 and "with transformers' AutoTokenizer" in out
    assert {p.name for p in (home / "out/t5").iterdir()} == {"config.json", "model.safetensors", "spiece.model", "tokenizer.json",
                                                             "tokenizer_config.json"}
    model, report = transformers.T5ForConditionalGeneration.from_pretrained(home / "out/t5", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and model.config.d_kv == 8
    tokenizer, vocabulary = transformers.AutoTokenizer.from_pretrained(home / "out/t5"), EN_PD_4096_SENTINELS
    assert tokenizer("the quick fox").input_ids == [*vocabulary.encode("the quick fox"), vocabulary.eos]
    assert (model.config.eos_token_id, model.generation_config.eos_token_id) == (vocabulary.eos, vocabulary.eos) == (3, 3)
    assert model.config.pad_token_id == model.config.decoder_start_token_id == vocabulary.pad
    code, _, err = ptmjax("export", "--workdir=t5", "--to=out/t5")
    assert code == 2 and "exists: name a new folder" in err.splitlines()[-1]  # transformers has its bar before
    still = ["--gin.rsqrt.peak=1e-30", "--gin.STEPS=1"]
    code, out, _ = ptmjax("train", "--gin_file=t5.gin", "--workdir=again", "--gin.Experiment.init_from='out/t5'", *still)
    assert code == 0 and "keeps its initial law" not in out
    assert last(home / "again")["seq2seq"] == pytest.approx(last(home / "t5")["seq2seq"], rel=1e-6)
    code, _, err = ptmjax("train", "--gin_file=t5.gin", "--workdir=third", "--gin.Experiment.init_from='nowhere'")
    assert code == 2 and err.count("\n") == 1 and "nowhere/config.json cannot be read" in err and not (home / "third").exists()
    code, _, err = ptmjax("train", "--gin_file=t5.gin", "--workdir=third", "--gin.Experiment.init_from='out/t5'", "--gin.D=32")
    assert code == 2 and err.count("\n") == 1 and "d_model: 16 vs 32" in err and not (home / "third").exists()


def test_electra_detects_and_says_what_it_cannot_do(ptmjax, home):
    code, out, err = ptmjax("train", "--gin_file=electra.gin", "--workdir=electra")
    assert code == 0 and not err and "F1 of replaced" in out and "unigram" in out
    found = json.loads((home / "electra/summary.json").read_text())
    assert 0 < found["replaced"] < 0.3 and found["overflow"] == 0
    code, out, _ = ptmjax("detect", "--workdir=electra", "--above=0", "the quick fox", "")
    assert code == 0 and len(out.splitlines()) == 3 and out.splitlines()[1].startswith("the(")
    code, out, _ = ptmjax("detect", "--workdir=electra", "--above=1", "the quick fox")
    assert code == 0 and out.splitlines()[1] == "the quick fox"
    assert out.splitlines()[2].strip().startswith("nothing marked; highest: ") and out.count("%") == 4, out
    code, out, _ = ptmjax("fill", "--workdir=electra", "--top=2", "a [MASK] and [MASK]")
    assert code == 0 and len(out.splitlines()) == 1 + 1 + 2 and out.count("%") == 4  # the generator's
    code, _, err = ptmjax("export", "--workdir=electra", "--to=out/electra")
    assert code == 2 and err.count("\n") == 1 and "no place for this network" in err and not (home / "out/electra").exists()
