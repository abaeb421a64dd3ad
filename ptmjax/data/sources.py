"""What documents are read from: files of text, files of rows (JSON lines, parquet), and datasets behind a scheme (tfds:, datasets:)."""
import collections
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from etils import epath

from ptmjax.data import text
from ptmjax.types import UserError

ROWS = (".jsonl", ".json", ".ndjson", ".parquet")


class Source(Protocol):
    """Where a task's documents come from. `key` is what decides them: a cache is used again exactly while it stays the same."""

    def documents(self, faults: collections.Counter) -> Iterator[str]:
        """In order; faults["invalid"] grows by what was not UTF-8."""

    def parts(self) -> Sequence["Source"]:
        """Sources whose documents, one source after the other, are those of this one: what can be read at once."""

    def key(self, memo: Path | None = None) -> dict[str, str]:
        """memo: a file that remembers digests (text.digest)."""

    def size(self) -> int:
        """Bytes, about."""


class Scheme(NamedTuple):
    """What stands before the colon of a dataset's name."""

    source: Callable[[str, str], Source]  # (name, field) -> Source
    placed: Callable[[str], str] = str  # a name -> one that means the same in any folder


SCHEMES: dict[str, Scheme] = {}  # filled below


def scheme(path: str) -> Scheme | None:
    """That of a dataset; None for a file."""
    name, _, rest = path.partition(":")
    return None if rest.startswith("//") else SCHEMES.get(name)


def placed(path: str) -> str:
    """A text as it can be named from any folder."""
    if found := scheme(path):
        name, _, rest = path.partition(":")
        return f"{name}:{found.placed(rest)}"
    return path if "://" in path else str(Path(path).absolute())


def source(paths: str | Sequence[str], style: str = "blank", field: str = "text") -> Source:
    """The source that `paths` name: a dataset where it is one SCHEME:NAME, else files, by their endings."""
    paths = (paths,) if isinstance(paths, str) else tuple(paths)
    for path in filter(scheme, paths):
        name, _, rest = path.partition(":")
        if len(paths) > 1:
            raise UserError(f"{name}:... stands alone: name one dataset, or files")
        return scheme(path).source(rest, field)
    return Files(paths, style, field)


@dataclass(frozen=True)
class Files:
    """Files and globs. .jsonl, .json, .ndjson (a JSON object a line) and .parquet: `field` of every row is a document; all others
    are text (text.documents, `style`). Plain, .gz, .bz2, .xz or .zst, parquet plain."""

    paths: tuple[str, ...]
    style: str = "blank"
    field: str = "text"

    def __post_init__(self):
        text.check_style(self.style)

    def _files(self) -> list[tuple[epath.Path, str]]:
        """(path, its ending without that of a compression)."""
        return [(path, next((end for end in reversed(path.suffixes) if end not in text.OPEN), "")) for path in text.files(self.paths)]

    def documents(self, faults: collections.Counter) -> Iterator[str]:
        for path, kind in self._files():
            if kind not in ROWS:
                yield from text.documents(str(path), self.style, faults)
                continue
            found = (parquet if kind == ".parquet" else json_lines)(path, self.field, faults)
            if (first := next(found, None)) is None:
                raise UserError(f"text {path} is empty: no row has anything in its field {self.field!r}")
            yield first
            yield from found

    def parts(self) -> list["Files"]:
        return [Files((str(path),), self.style, self.field) for path, _ in self._files()]

    def key(self, memo: Path | None = None) -> dict[str, str]:
        how = {"field": self.field} if any(kind in ROWS for _, kind in self._files()) else {}
        return {"style": self.style, "source": text.digest(self.paths, memo), **how}

    def size(self) -> int:
        return sum(text.size_and_time(path)[0] for path in text.files(self.paths))


def json_lines(path: epath.Path, field: str, faults: collections.Counter) -> Iterator[str]:
    """The field of every line that is not blank; a row in which it is blank is passed over."""
    for number, line in enumerate(text.lines(path, faults), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise UserError(f"text {path}, line {number} is not JSON ({e}): give a JSON object a line") from e
        yield from document(row, field, f"{path}, line {number}", faults)


def parquet(path: epath.Path, field: str, faults: collections.Counter) -> Iterator[str]:
    """The field of every row, a batch of rows in memory at a time."""
    import pyarrow.parquet

    try:
        with path.open("rb") as f, pyarrow.parquet.ParquetFile(f) as table:
            if field not in table.schema_arrow.names:
                raise _lacks(f"{path}", field, table.schema_arrow.names)
            rows = (row for batch in table.iter_batches(batch_size=1024, columns=[field]) for row in arrow(batch.column(0)))
            for number, row in enumerate(rows, 1):
                yield from document({field: row}, field, f"{path}, row {number}", faults)
    except (OSError, pyarrow.ArrowException) as e:
        raise text.unreadable(path, e) from e


def arrow(column) -> list[object]:
    """The values of a column of pyarrow; texts as bytes, because they need not be UTF-8, which only Python would find."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
        column = column.cast(pyarrow.large_binary())
    return column.to_pylist()


def document(row: object, field: str, where: str, faults: collections.Counter) -> list[str]:
    """[the document of a row], or [] where there is none. Bytes are UTF-8."""
    if not isinstance(row, dict):
        raise UserError(f"text {where} is not an object with fields: give one a row")
    if field not in row:
        raise _lacks(where, field, row)
    if not isinstance(value := row[field], str | bytes | None):
        raise UserError(f"text {where}: {field!r} is a {type(value).__name__}, not a text: name another field")
    if value:
        value = text.clean(text.decoded(value, faults) if isinstance(value, bytes) else text.wellformed(value, faults))
    return [value] if value else []


def _lacks(where: str, field: str, has) -> UserError:
    return UserError(f"text {where} has no field {field!r}, it has {', '.join(map(repr, sorted(has)[:8])) or 'none'}: name one of them")


@dataclass(frozen=True)
class Hub:
    """A dataset of the package `datasets`: a folder that save_to_disk wrote, or a name of its hub, NAME[@SPLIT]; its `field` is a
    document. Needs the extra "datasets"."""

    name: str
    field: str = "text"

    def _opened(self):
        try:
            import datasets
        except ImportError as e:
            raise UserError('datasets:... needs the package datasets: pip install "ptmjax[datasets]"') from e
        name, _, split = self.name.partition("@")
        try:
            found = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name, split=split or "train")
            found = found if isinstance(found, datasets.Dataset) else found[split or "train"]
        except Exception as e:  # the hub's, the network's and the file system's
            raise UserError(f"datasets:{self.name} cannot be opened ({type(e).__name__}: {text.first_line(e)}): check its name") from e
        if self.field not in found.column_names:
            raise _lacks(f"datasets:{self.name}", self.field, found.column_names)
        return found.select_columns([self.field])

    def documents(self, faults: collections.Counter) -> Iterator[str]:
        tables = self._opened().with_format("arrow").iter(batch_size=1024)
        for number, row in enumerate((row for table in tables for row in arrow(table.column(0))), 1):
            yield from document({self.field: row}, self.field, f"datasets:{self.name}, row {number}", faults)

    def parts(self) -> list["Hub"]:
        return [self]

    def key(self, memo: Path | None = None) -> dict[str, str]:
        return {"source": f"datasets {self._opened()._fingerprint}", "field": self.field}

    def size(self) -> int:
        return int(self._opened().data.nbytes)


def folder_placed(name: str) -> str:
    """Of a dataset of the hub, or a folder of save_to_disk: NAME[@SPLIT]."""
    where, at, split = name.partition("@")
    return f"{Path(where).absolute()}{at}{split}" if Path(where).is_dir() else name


def tfds(name: str, field: str) -> Source:
    from ptmjax.data import adapters  # and TensorFlow with it

    return adapters.Tfds(name, field)


SCHEMES |= {"tfds": Scheme(tfds), "datasets": Scheme(Hub, folder_placed)}
