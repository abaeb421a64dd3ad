"""--data: training, inspecting and reading out on a text that no task names; `ptmjax vocab`."""
import io
import json
import random
import re
import resource
import shutil
from types import SimpleNamespace

import pytest

from ptmjax.cli import own
from ptmjax.cli.main import main
from ptmjax.data.bytebpe import ByteBPE
from ptmjax.data.wordpiece import WordPiece
from ptmjax.types import UserError

WORDS = "the quick brown fox jumps over lazy dogs and runs into deep dark woods while old owls sing of moons".split()
SMALL = ["--gin.LAYERS=1", "--gin.D=16", "--gin.HEADS=2", "--gin.HIDDEN=32", "--gin.BATCH=8", "--gin.V=128"]
BERT = ["--gin_file=bert_base_mlm.gin", *SMALL, "--gin.STEPS_SHORT=2", "--gin.STEPS_LONG=1", "--gin.WARMUP=1", "--gin.SLOTS_SHORT=10", "--gin.SLOTS_LONG=10",
        "--gin.TASK_SHORT=en_pd_mlm_64", "--gin.TASK_LONG=en_pd_wwm_64"]


def stories(n=120, seed=0):
    rng = random.Random(seed)
    return [f"story {i}: " + " ".join(rng.choice(WORDS) for _ in range(60)) for i in range(n)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "my").mkdir()
    (folder / "my" / "a.txt").write_text("\n\n".join(stories()))
    (folder / "my" / "b.txt").write_text("\n\n".join(stories(40, 1)))
    (folder / "rows.jsonl").write_text("".join(json.dumps({"body": story}) + "\n" for story in stories()))
    return folder


@pytest.fixture
def ptmjax(home, capsys, monkeypatch):
    monkeypatch.chdir(home)

    def run(*argv):
        code = main([*argv, "--cache=cache"])
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def test_bert_on_own_text_from_one_command(ptmjax, home, monkeypatch, tmp_path):
    """Trained, read out from its folder, gone on with without another vocabulary, refused on a changed text, and used when the text
    has changed, when it is gone, and when the cache is gone too."""
    shutil.copytree(home / "my", home / "mine")
    code, out, err = ptmjax("train", *BERT, "--data=mine/*.txt", "--workdir=run")
    assert code == 0, err
    assert "training a wordpiece vocabulary of at most 128 pieces" in err and "own_en_pd_mlm_64" in out
    monkeypatch.chdir(tmp_path)  # what is saved finds the text from anywhere
    code, out, err = ptmjax("eval", f"--workdir={home / 'run'}", f"--cache={home / 'cache'}")
    assert code == 0 and json.loads(out)["step"] == 3, err

    monkeypatch.chdir(home)
    code, out, err = ptmjax("train", *BERT, "--data=mine/*.txt", "--workdir=run", "--gin.STEPS_LONG=2")
    assert code == 0 and "training a" not in err and "going on from step 3 of 4" in out, err

    before = {path: path.read_bytes() for path in (home / "cache").glob("vocabulary-*")}
    with (home / "mine" / "b.txt").open("a") as f:
        f.write("".join(f"\n\nanother story, {i}" + ", of zigzag zebras" * 999 for i in range(3)))
    code, _, err = ptmjax("train", *BERT, "--data=mine/*.txt", "--workdir=run", "--gin.STEPS_LONG=3")
    assert code == 2 and "holds a run on other data" in err
    [changed] = set((home / "cache").glob("vocabulary-*")) - before.keys()
    assert changed.read_bytes() not in before.values()  # so that what follows is not given by chance

    rest = ["fill", "--workdir=run", "the quick [MASK]"]
    code, wanted, err = ptmjax(*rest)
    assert code == 0 and "training a" not in err, err
    shutil.rmtree(home / "mine")
    code, out, err = ptmjax("eval", "--workdir=run")
    assert code == 0 and json.loads(out)["step"] == 4, err
    (home / "cache").rename(home / "elsewhere")
    assert ptmjax(*rest) == (0, wanted, "")
    assert ptmjax("export", "--workdir=run", "--to=run_exported")[0] == 0 and (home / "run_exported" / "tokenizer.json").exists()
    code, _, err = ptmjax("eval", "--workdir=run")
    assert code == 2 and "mine/*.txt does not exist" in err and not list((home / "cache").glob("own_*"))
    shutil.rmtree(home / "cache", ignore_errors=True)
    (home / "elsewhere").rename(home / "cache")


@pytest.mark.parametrize("gin, more", [
    pytest.param(["t5_small.gin", "--gin.STEPS=1", "--gin.TASK=en_pd_spans_64", "--gin.V=300"], ["--vocabulary=unigram:100"], marks=pytest.mark.slow),
    (["t5_small.gin", "--gin.STEPS=1", "--gin.TASK=en_pd_spans_64", "--gin.V=400"], ["--vocabulary=bytes"]),
    pytest.param(["electra_small.gin", "--gin.STEPS=1", "--gin.TASK=en_pd_rtd_64", "--gin.GD=8", "--gin.GHEADS=2", "--gin.GHIDDEN=8", "--gin.E=8", "--gin.WARMUP=0"],
                 ["--vocabulary=bpe"], marks=pytest.mark.slow),
    (["bert_demo.gin", "--gin.SIZE=8", "--gin.STEPS=1", "--gin.WARMUP=0"], ["--cased", "--holdout=20"]),
])
def test_other_systems_and_vocabularies_on_rows(ptmjax, tmp_path, gin, more):
    rest = [option for option in SMALL if not any(option.partition("=")[0] == given.partition("=")[0] for given in gin)]
    code, out, err = ptmjax("train", f"--gin_file={gin[0]}", *rest, *gin[1:], "--data=rows.jsonl", "--field=body", f"--workdir={tmp_path / 'run'}", *more)
    assert code == 0, err


def test_inspect_shows_own_text_from_standard_input(ptmjax, home, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(stories()).encode())))
    code, out, err = ptmjax("inspect", *BERT, "--data=-", "--style=line", "--examples=1")
    assert code == 0 and "woods" in out, err
    [kept] = (home / "cache").glob("stdin-*")
    assert kept.suffix == ".txt" and f"{kept.name}: delete it when no run is to read it again" in err


def test_standard_input_that_is_no_text(ptmjax, home, monkeypatch, tmp_path):
    """Closed, of several processes, broken, and more than the disk takes: one line, and nothing is left of it."""
    class Broken:
        buffer = SimpleNamespace(read=lambda size: (_ for _ in ()).throw(OSError(21, "Is a directory")))

    there = set((home / "cache").iterdir()) if (home / "cache").exists() else set()
    given = ["train", *BERT, "--data=-", f"--workdir={tmp_path / 'run'}"]
    for stdin, more, fault in ((None, [], "standard input is closed"), (None, ["--distributed"], "each of several processes has"),
                               (None, ["--coordinator=localhost:1"], "each of several processes has"), (Broken, [], "cannot be read (Is a directory)")):
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("ptmjax.cli.session.join", lambda args: None)
        code, _, err = ptmjax(*given, *more)
        assert code == 2 and fault in err and err.count("\n") == 1, err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a" * (1 << 20))))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        code, _, err = ptmjax(*given)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2 and "cannot write the data cache in" in err and set((home / "cache").iterdir()) == there, err


def test_a_vocabulary_that_is_deleted_from_the_cache_is_made_again(ptmjax, home, tmp_path):
    given = ["vocab", "--data=my/b.txt", "--size=109"]
    assert ptmjax(*given, f"--out={tmp_path / '1.txt'}")[0] == 0
    [file] = [path for path in (home / "cache").glob("vocabulary-*") if path.read_bytes() == (tmp_path / "1.txt").read_bytes()]
    file.unlink()
    assert ptmjax(*given, f"--out={tmp_path / '2.txt'}")[0] == 0
    code, _, err = ptmjax(*given, f"--out={tmp_path / '3.txt'}")
    assert code == 0 and "training a" not in err and file.exists() and not list((home / "cache").glob(".part-*"))


def test_vocab_and_a_file_of_it(ptmjax, tmp_path):
    out = tmp_path / "new" / "vocab.txt"
    code, said, err = ptmjax("vocab", "--data=my/a.txt", "--size=110", f"--out={out}")
    assert code == 0 and said == f"{out}: {WordPiece(str(out)).size} pieces\n", err
    code, said, err = ptmjax("inspect", *BERT, "--data=my/a.txt", f"--vocabulary={out}", "--examples=0")
    assert code == 0, err
    for given, fault in ((["--size=110", f"--out={out}"], "exists: name another file"), (["--kind=bpe", f"--out={out}"], "is a .model file"),
                         (["--size=4", f"--out={tmp_path / 'v.txt'}"], "a wordpiece vocabulary of 4 pieces: symbols"), (["--out=v.txt", "--data=none"], "none does not exist")):
        code, _, err = ptmjax("vocab", "--data=my/a.txt", *given)
        assert code == 2 and fault in err.splitlines()[-1]


@pytest.mark.parametrize("given, fault", [
    (["--style=line"], "--style is about --data, which is not given"), (["--cased"], "--cased is about --data"),
    (["--data=my/none*.txt"], "none*.txt does not exist"), (["--data=my/a.txt", "--vocabulary=words"], "'words' is neither a kind"),
    (["--data=my/a.txt", "--vocabulary=bpe:many"], "'many' is no number of pieces"),
    (["--data=my/a.txt", "--vocabulary=bpe:"], "'' is no number of pieces"), (["--data=my/a.txt", "--vocabulary=bytes:100"], "'bytes:100': bytes are 256"), (["--data=my/a.txt", "--vocabulary=x.model"], "x.model cannot be read"),
    (["--data=rows.jsonl"], "has no field 'text', it has 'body'"), (["--data=my/a.txt", "--holdout=1"], "holdout is 1; it must be at least 2"),
    (["--data=my/a.txt", "--vocabulary=wordpiece:200"], "is for 128 ids, the vocabulary of own_en_pd_mlm_64 has"),
    (["--data=tfds:none_such"], "tfds:none_such cannot be opened"),
])
def test_faults_are_one_line_and_leave_nothing(ptmjax, tmp_path, given, fault):
    code, _, err = ptmjax("train", *BERT, f"--workdir={tmp_path / 'run'}", *given)
    told = [line for line in err.splitlines() if not line.startswith("training a")]
    assert code == 2 and len(told) == 1 and fault in told[0] and not (tmp_path / "run").exists()


def test_span_tasks_refuse_a_vocabulary_without_sentinels(ptmjax, tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    for vocabulary in ("wordpiece", tmp_path / "vocab.txt"):
        code, _, err = ptmjax("inspect", "--gin_file=t5_small.gin", "--data=my/a.txt", f"--vocabulary={vocabulary}")
        assert code == 2 and "has no sentinels, which this task needs" in err


def test_a_dry_run_tells_sizes_and_writes_no_run(ptmjax, tmp_path):
    code, out, err = ptmjax("train", *BERT, "--data=my/a.txt", "--vocabulary=wordpiece:110", f"--workdir={tmp_path / 'run'}", "--dry_run")
    assert "--gin.V=110 makes a smaller model" in out and code == 0 and not (tmp_path / "run").exists(), err
    for told in ("stage 1", "stage 2", "own_en_pd_wwm_64", "own_en_pd_mlm_64: ", "tokens a step", "512", "MFLOP", "MiB", "'fsdp': 1"):
        assert told in out, out
    assert re.search(r"attention by +│ reference +│ reference +│", out), out


def test_unknown_characters_of_a_given_vocabulary_are_warned_of(ptmjax, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "story", ":", "the", "and"]) + "\n")
    code, out, err = ptmjax("train", *BERT, "--data=my/a.txt", f"--vocabulary={tmp_path / 'vocab.txt'}", f"--workdir={tmp_path / 'run'}")
    assert code == 0 and "of tokens are characters that the vocabulary lacks" in out and "--gin.V=9 makes a smaller model" in out, err


def test_inspect_tells_what_the_rows_cut_off(ptmjax):
    code, out, err = ptmjax("inspect", *BERT, "--data=my/a.txt", "--examples=0")
    assert code == 0 and "cut off, of all tokens of the records │ 0.0000" in out, out + err


@pytest.mark.slow
def test_roberta_on_own_text_has_a_vocabulary_of_bytes(ptmjax, home, tmp_path):
    """Trained on the text where none is named, kept whole in the work folder, exported with its merges; of two files it is the same."""
    sizes = [*SMALL, "--gin.V=400", "--gin.STEPS=2", "--gin.WARMUP=1", "--gin.SLOTS=10", "--gin.TASK=en_pd_full_64", "--data=my/a.txt", "--cased"]
    code, out, err = ptmjax("train", "--gin_file=roberta_base.gin", *sizes, f"--workdir={tmp_path / 'run'}")
    assert code == 0 and "training a bytebpe vocabulary of at most 400 pieces" in err and "own_en_pd_full_64" in out, err
    kept = own.opened(str(tmp_path / "run" / "vocabulary.json"), 0, True)
    assert isinstance(kept, ByteBPE) and kept.decode(kept.encode(" Ömer Fox")) == " Ömer Fox" and kept.pad == 1
    code, out, err = ptmjax("fill", f"--workdir={tmp_path / 'run'}", "the [MASK] fox", "[MASK]", "--top=400")
    assert code == 0 and "##" in out.split("\n[MASK]")[0] and "%" in out, err
    code, out, err = ptmjax("export", f"--workdir={tmp_path / 'run'}", f"--to={tmp_path / 'to'}")
    assert code == 0 and json.loads((tmp_path / "to" / "config.json").read_text())["max_position_embeddings"] == 514, err
    held = json.loads((tmp_path / "to" / "tokenizer.json").read_text())["model"]
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "vocab.json").write_text(json.dumps(held["vocab"] | {"<mask>": kept.mask}))
    (tmp_path / "two" / "merges.txt").write_text("".join(" ".join(pair) + "\n" for pair in held["merges"]))
    code, out, err = ptmjax("inspect", "--gin_file=roberta_base.gin", *sizes, f"--vocabulary={tmp_path / 'two'}", "--examples=1")
    assert code == 0 and "Ġthe" in out and "training a" not in err, err


def test_a_json_is_opened_by_what_it_holds(ptmjax, tmp_path):
    assert ptmjax("vocab", "--data=my/a.txt", "--kind=bytebpe", "--size=300", "--cased", f"--out={tmp_path / 'v.json'}")[0] == 0
    assert isinstance(own.opened(str(tmp_path / "v.json"), 0, True), ByteBPE)
    (tmp_path / "w.json").write_text('{"model": {"type": "WordPiece", "vocab": {}}}')
    assert isinstance(own.opened(str(tmp_path / "w.json"), 0, True), WordPiece)
    for path, sentinels, words in ((tmp_path / "v.json", 9, "has no sentinels"), (tmp_path / "none", 0, "is neither a kind"), (tmp_path, 0, "a folder with neither tokenizer.json")):
        with pytest.raises(UserError, match=words):
            own.opened(str(path), sentinels, True).encode("a")
    assert "no sentinels, which this task needs" in ptmjax("inspect", "--gin_file=t5_demo.gin", "--data=my/a.txt", "--vocabulary=bytebpe:300")[2]


def test_a_vocabulary_of_a_tagged_text_sees_no_tags(ptmjax, home):
    (home / "tagged.txt").write_text("\n".join(f"我/r 喜欢/v {c}/n 和/c 别人/r 的/u 诗/n 。/w" for c in "天地玄黄宇宙洪荒日月盈昃辰宿列张" * 4), encoding="utf-8")
    given = ["--gin_file=bert_demo.gin", "--gin.TASK=zh_tagged_ernie_64", "--data=tagged.txt", "--style=line", "--holdout=3", "--vocabulary=characters:64"]
    code, out, err = ptmjax("inspect", *given, "--examples=1")
    assert code == 0 and "training a characters vocabulary" in err and "我 喜欢" in out.replace("[", "").replace("]", ""), err
    [made] = (home / "cache").glob("vocabulary-characters-*")
    assert {"我", "喜", "。"} <= (pieces := set(made.read_text(encoding="utf-8").split())) and not pieces & {"/", "n", "r", "w"}
    code, _, err = ptmjax("inspect", "--gin_file=t5_demo.gin", "--data=tagged.txt", "--vocabulary=characters:64")
    assert code == 2 and "vocabulary characters has no sentinels" in err
