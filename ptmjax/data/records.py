"""The cache: records of a task and split as ArrayRecord shards with a manifest, built once, read by index.

A folder holds manifest.json, counts.npy (how often each id occurs in the records, [V]) and one ArrayRecord file a shard. A
record is a msgpack map column -> little-endian bytes; the manifest's schema names the dtypes, every column is a vector. The
records of an empty shard are no file. V vocabulary.
"""
import array
import bisect
import collections
import contextlib
import functools
import hashlib
import itertools
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgpack
import numpy as np
import rich.console
import rich.progress
from array_record.python import array_record_module

from ptmjax.data import text
from ptmjax.data.cache import keep, making
from ptmjax.data.sources import Source
from ptmjax.data.task import Task
from ptmjax.data.workers import ordered
from ptmjax.types import UserError

FORMAT = 1  # layout of the folder and of a record
CODE = 1  # raise it when text.py or windows.py give other records for the same text: caches are then built anew
SMALL = 20_000_000  # bytes of text below which starting worker processes costs more than it gains
SPLITS = ("train", "validation")


# ------------------------------------------------------------------ source of the records
def of_split(task: Task, split: str, source: Source, faults: collections.Counter) -> Iterator[str]:
    """The documents of a source (the task's, or a part of it) that are of the split, in order."""
    return (document for document in source.documents(faults) if text.split_of(document, task.holdout) == split)


def measure(task: Task, split: str, source: Source, faults: collections.Counter) -> tuple[np.ndarray, text.Distinct]:
    """The characters of each of those documents, int64 [documents], and which are distinct."""
    lengths, distinct = array.array("q"), text.Distinct()
    for document in of_split(task, split, source, faults):
        lengths.append(len(document))
        distinct.add(document)
    return np.array(lengths, np.int64), distinct


def deal(task: Task, split: str, faults: collections.Counter | None = None) -> Iterator[list[str]]:
    """The documents of each shard of the split, in order: `task.shards` lists, some of which may be empty.

    Reads the text twice, so that it never holds more than a shard. `faults` counts ill-formed bytes (text.documents) and duplicates.
    """
    faults = collections.Counter() if faults is None else faults
    lengths, distinct = measure(task, split, task.source, faults)
    faults["duplicates"] += distinct.duplicates
    again = of_split(task, split, task.source, collections.Counter())
    groups = itertools.groupby(zip(text.runs(lengths, task.shards), again), key=lambda pair: pair[0])
    shard, held = next(groups, (None, ()))
    for number in range(task.shards):
        if number == shard:
            yield [document for _, document in held]
            shard, held = next(groups, (None, ()))
        else:
            yield []


def records(task: Task, split: str) -> list[dict[str, np.ndarray]]:
    """All records of the split in memory, with the numbers that the cache gives them."""
    return [record for documents in deal(task, split) for record in task.cut(documents, task.vocabulary)]


def pack(record: dict[str, np.ndarray], schema: dict[str, str]) -> bytes:
    if record.keys() != schema.keys():
        raise ValueError(f"the cut gave columns {sorted(record)}, its schema has {sorted(schema)}")
    return msgpack.packb({name: np.asarray(record[name], np.dtype(schema[name]).newbyteorder("<")).tobytes() for name in schema})


def unpack(raw: bytes, schema: dict[str, np.dtype]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(column, schema[name]) for name, column in msgpack.unpackb(raw).items()}


def write_shard(path: str, documents: Sequence[str], task: Task) -> tuple[collections.Counter, np.ndarray]:
    """A shard of the source to one file of records: equal documents give equal bytes, wherever it runs.

    Returns counts (windows.py, and "records") and how often each id occurs, int64 [V].
    """
    counts, ids = collections.Counter(records=0), np.zeros(task.vocabulary.size, np.int64)
    writer = array_record_module.ArrayRecordWriter(path, "group_size:1") if documents else None
    for record in task.cut(documents, task.vocabulary, counts):
        with _on_disk():
            writer.write(pack(record, task.cut.schema))
        np.add.at(ids, record["tokens"], 1)
        counts["records"] += 1
    if writer:
        with _on_disk():
            writer.close()
        counts["bytes"] = os.path.getsize(path)
    return counts, ids


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    """ArrayRecord has RuntimeError for what the disk does."""
    try:
        yield
    except RuntimeError as e:
        raise OSError(str(e).partition(";")[0]) from e


# ------------------------------------------------------------------ build
def describe(task: Task, split: str, folder: str) -> dict:
    """What decides the records: the cache is used again exactly while this stays the same."""
    return dict(
        format=FORMAT, code=CODE, split=split, holdout=task.holdout, shards=task.shards, cut=repr(task.cut), schema=dict(task.cut.schema),
        vocabulary=task.vocabulary.fingerprint, **task.source.key(Path(folder) / ".digests.json"),
    )


Made = Iterator[tuple[collections.Counter, np.ndarray]]  # of each shard, what write_shard returns
Run = Callable[[Task, str, list[str], collections.Counter], Made]


def build(task: Task, split: str, folder: str, workers: int | None = None, progress: bool = True, run: Run | None = None) -> "Records":
    """The records of the split, from <folder>/<task>-<split>-<key> where they are, else made there.

    Args:
        workers: processes; None takes all cores, or this process alone for a small text. The bytes do not depend on it. Each
            process imports the caller's main module, as multiprocessing does: a script needs its `if __name__ == "__main__"`.
        run: what makes the shards instead (beam.Beam): (task, split, their paths, faults) -> write_shard's results, in order.
    Raises:
        UserError: a fault of the text (text.py), a split without a record, a worker that was killed, or a damaged cache (Records).
    """
    if split not in SPLITS:
        raise UserError(f"split {split!r} is not known: use one of {', '.join(SPLITS)}")
    what = describe(task, split, folder)
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
    final = Path(folder) / f"{task.name}-{split}-{key}"
    if not final.exists():
        with making(final.parent) as part:
            _fill(task, split, what, part, run or functools.partial(here, workers=workers, progress=progress))
            keep(part, final)
    return Records(final)


def _fill(task: Task, split: str, what: dict, part: Path, run: Run) -> None:
    faults, shards, ids = collections.Counter(invalid=0, duplicates=0), [], np.zeros(task.vocabulary.size, np.int64)
    names = [f"{number:05d}-of-{task.shards:05d}.array_record" for number in range(task.shards)]
    with contextlib.closing(run(task, split, [str(part / name) for name in names], faults)) as results:
        for name, (counts, seen) in zip(names, results):
            shards.append({"file": name, "records": counts.pop("records"), "bytes": counts.pop("bytes", 0)})
            faults.update(counts)
            ids += seen
    if not sum(shard["records"] for shard in shards):
        raise UserError(
            f"task {task.name}: no document of its text gives a record of the {split} split "
            f"(one document in {task.holdout} is validation, by hash): give more or longer documents, or say where one ends "
            "(--style=line: at every line)"
        )
    np.save(part / "counts.npy", ids, allow_pickle=False)
    manifest = {**what, "task": task.name, "counts": dict(sorted(faults.items())), "counts_crc": digest(ids), "files": shards}
    (part / "manifest.json").write_text(json.dumps(manifest, indent=1))


def digest(ids: np.ndarray) -> int:
    """A checksum of how often each id occurs: what is only numbers is not seen to be damaged."""
    return zlib.crc32(np.ascontiguousarray(ids, np.int64).tobytes())


def here(task: Task, split: str, paths: list[str], faults: collections.Counter, workers: int | None, progress: bool) -> Made:
    """On this machine: write_shard's results in the order of shards; at most workers + 1 shards of text are held."""
    dealt = deal(task, split, faults)
    if workers is None:
        workers = 1 if task.source.size() < SMALL else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    console = rich.console.Console(stderr=True)  # standard output may be read by a program
    with rich.progress.Progress(console=console, disable=not (progress and console.is_terminal), transient=True) as bar:
        shard = bar.add_task(f"{task.name} {split}", total=len(paths))
        jobs = ((path, documents, task) for path, documents in zip(paths, dealt))
        with contextlib.closing((write_shard(*job) for job in jobs) if workers == 1 else ordered(write_shard, jobs, workers)) as results:
            for result in results:
                bar.advance(shard)
                yield result


# ------------------------------------------------------------------ read
class Records(Sequence):
    """Records of a cache folder by number, over the shards in order; safe in threads, pickled as its path.

    Raises:
        UserError: the folder is no cache, or a shard is missing, truncated or unreadable (ArrayRecord itself would give
            zero records without a word).
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        try:
            self.manifest = json.loads((self.folder / "manifest.json").read_text())
        except (OSError, ValueError) as e:
            raise self._damaged("manifest.json", "is missing or not JSON") from e
        try:
            self._take()
        except UserError:
            raise
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as e:
            raise self._damaged("manifest.json", "is damaged") from e

    def _take(self) -> None:
        """Reads the manifest, and holds the shards to it."""
        if self.manifest["format"] != FORMAT:
            raise self._damaged("manifest.json", f"has format {self.manifest['format']}, this code reads {FORMAT}")
        self._schema = {name: np.dtype(kind).newbyteorder("<") for name, kind in self.manifest["schema"].items()}
        self._ends = list(itertools.accumulate(shard["records"] for shard in self.manifest["files"]))
        self._readers, self._lock = {}, threading.Lock()
        if not (self._ends and all(isinstance(end, int) and end >= 0 for end in self._ends) and isinstance(self.manifest["counts"], dict)):
            raise ValueError("no files")
        for shard in self.manifest["files"]:
            path = self.folder / shard["file"]
            size = path.stat().st_size if path.is_file() else 0
            if size != shard["bytes"]:
                raise self._damaged(shard["file"], f"has {size} bytes of {shard['bytes']}")

    def __reduce__(self):
        return Records, (self.folder,)

    def _damaged(self, name: str, what: str) -> UserError:
        return UserError(f"data cache {self.folder / name} {what}: delete {self.folder} and it is built again")

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """int64 [V]: how often each id occurs in the records."""
        try:
            counts = np.load(self.folder / "counts.npy", allow_pickle=False)
            found = digest(counts)
        except (OSError, ValueError, TypeError, EOFError) as e:
            raise self._damaged("counts.npy", "cannot be read") from e
        if counts.dtype != np.int64 or found != self.manifest.get("counts_crc", found):  # older caches do not tell
            raise self._damaged("counts.npy", "holds other numbers than were counted")
        return counts

    def __len__(self) -> int:
        return self._ends[-1]

    def _reader(self, shard: int) -> tuple[array_record_module.ArrayRecordReader, threading.Lock]:
        with self._lock:
            if shard not in self._readers:
                about = self.manifest["files"][shard]
                path = str(self.folder / about["file"])
                reader = array_record_module.ArrayRecordReader(path, "readahead_buffer_size:0,max_parallelism:0")
                if reader.num_records() != about["records"]:
                    raise self._damaged(about["file"], f"has {reader.num_records()} records of {about['records']}")
                self._readers[shard] = reader, threading.Lock()
            return self._readers[shard]

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Columns of one record, each a read-only vector."""
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        shard = bisect.bisect_right(self._ends, index)
        about = self.manifest["files"][shard]
        reader, lock = self._readers.get(shard) or self._reader(shard)
        try:
            with lock:  # seek and read: the reader's own read([i]) hands each record to a pool of threads, three times as slow
                reader.seek(index - self._ends[shard] + about["records"])
                raw = reader.read()
        except (RuntimeError, ValueError, IndexError) as e:
            raise self._damaged(about["file"], f"cannot be read ({str(e).splitlines()[0]})") from e
        return unpack(raw, self._schema)
