"""The cache on many machines: Apache Beam runs there what one machine runs (records.measure, records.write_shard), so the bytes are
those of one machine.

Two pipelines: the parts of the text are measured; then, the runs of documents known, a job reads the documents of each shard and writes
it. What passes between machines lies in a staging folder: the vocabulary, a file a shard, a .npz of what each job counted.
"""
import collections
import contextlib
import io
import itertools
import json
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from etils import epath

from ptmjax.data import records, text
from ptmjax.data.task import Task
from ptmjax.types import UserError

Said = tuple[dict, Mapping[str, np.ndarray]]  # what a job tells: numbers by name, arrays
Span = tuple[int, int, int]  # part of the text, begin and end of a run of its documents of the split


@dataclass(frozen=True)
class Beam:
    """As records.here, by a runner of Beam. staging: a folder that this machine and all workers reach, gs:// too. options: of the runner,
    NAME=VALUE."""

    runner: str
    staging: str
    options: Sequence[str] = ()

    def __call__(self, task: Task, split: str, paths: list[str], faults: collections.Counter) -> records.Made:
        folder = epath.Path(self.staging) / f".beam-{task.name}-{split}-{uuid.uuid4().hex[:8]}"
        folder.mkdir(parents=True)
        try:
            there = carried(task, folder)
            lengths, distinct = [], text.Distinct()
            for counts, arrays in self.each(measured, [(there, split, number) for number in range(len(task.source.parts()))], folder):
                lengths.append(arrays["lengths"])
                faults["invalid"] += counts["invalid"]
                distinct.merge(distinct_of(counts, arrays))
            faults["duplicates"] += distinct.duplicates
            jobs = [(there, split, spans, str(folder / Path(path).name)) for path, spans in zip(paths, runs(lengths, task.shards))]
            for path, (counts, arrays) in zip(paths, self.each(written, jobs, folder)):
                if "bytes" in counts:
                    (folder / Path(path).name).copy(path)
                yield collections.Counter(counts), arrays["ids"]
        finally:
            folder.rmtree()

    def each(self, act: Callable[..., Said], jobs: Sequence[tuple], folder: epath.Path) -> Iterator[Said]:
        """What act(*job) tells of every job, in order, once all are done; the first UserError of one."""
        told = [str(folder / f"{act.__name__}-{number:05d}.npz") for number in range(len(jobs))]
        self.pipeline([(act, to, *job) for to, job in zip(told, jobs)])
        for path in told:
            yield read(path)

    def pipeline(self, jobs: Sequence[tuple]) -> None:
        """answer(*job) of every job, on the workers."""
        options = self.parsed()
        import apache_beam as beam

        try:
            with beam.Pipeline(options=options) as pipeline:
                pipeline | beam.Create(jobs) | beam.Reshuffle() | beam.MapTuple(answer)
        except Exception as e:  # the runner's own, of a hundred kinds
            raise UserError(f"the pipeline failed on {self.runner} ({type(e).__name__}: {text.first_line(e)[:300]}): what it says above "
                            "tells more, or the page of its job") from e

    def parsed(self):
        """Beam's own options; UserError for a runner that it has not, and for options, which it would pass over with a warning."""
        try:
            from apache_beam.options.pipeline_options import PipelineOptions
            from apache_beam.runners.runner import create_runner
        except ImportError as e:
            raise UserError('--runner needs the package apache-beam: pip install "ptmjax[beam]"') from e
        try:
            create_runner(self.runner)
        except (ValueError, ImportError) as e:
            raise UserError(f"--runner={self.runner}: {text.first_line(e)[:300]}") from e
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                options = PipelineOptions([f"--{option}" for option in self.options], runner=self.runner)
                known, given = options.get_all_options(), options.get_all_options(retain_unknown_options=True)
        except SystemExit as e:  # argparse's
            raise UserError(f"--beam: {said.getvalue().strip().splitlines()[-1].partition('error: ')[2]}") from e
        if unknown := sorted(set(given) - set(known)):
            raise UserError(f"--beam {unknown[0]}: Beam has no such option")
        return options


def carried(task: Task, folder: epath.Path) -> Task:
    """The task with its vocabulary in the folder, where it is a file: those are pickled as their paths, which only this machine has."""
    if (file := task.vocabulary.file) is None:
        return task
    ending, content = file
    to = folder / f"{Path(task.vocabulary.path).stem}{ending}"
    to.write_bytes(content)
    return task.on(task.name, task.vocabulary.at(str(to)))


def runs(lengths: Sequence[np.ndarray], shards: int) -> list[list[Span]]:
    """Where the documents of each shard stand. lengths: the characters of every document, by part."""
    dealt = text.runs(np.concatenate(lengths), shards)
    begins, found = np.cumsum([0, *map(len, lengths)]), []
    for first, last in itertools.pairwise(np.searchsorted(dealt, np.arange(shards + 1))):
        ends = [(max(first, begin) - begin, min(last, end) - begin) for begin, end in itertools.pairwise(begins)]
        found.append([(part, int(begin), int(end)) for part, (begin, end) in enumerate(ends) if begin < end])
    return found


# ------------------------------------------------------------------ on the workers
def measured(task: Task, split: str, part: int) -> Said:
    faults = collections.Counter(invalid=0)
    lengths, distinct = records.measure(task, split, task.source.parts()[part], faults)
    numbers = {"invalid": faults["invalid"], "total": distinct.total, "bound": distinct.bound}
    seen = {"hashes": np.array([*distinct.seen], np.uint64), "times": np.array([*distinct.seen.values()], np.int64)}
    return numbers, {"lengths": lengths, **seen}


def distinct_of(numbers: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> text.Distinct:
    found = text.Distinct()
    found.total, found.bound = numbers["total"], numbers["bound"]
    found.seen.update(dict(zip(arrays["hashes"].tolist(), arrays["times"].tolist())))
    return found


def written(task: Task, split: str, spans: Sequence[Span], to: str) -> Said:
    """Writes a shard, which ArrayRecord can do on a disk alone, and brings it there."""
    parts = task.source.parts()
    of = lambda part: records.of_split(task, split, parts[part], collections.Counter())
    documents = [document for part, begin, end in spans for document in itertools.islice(of(part), begin, end)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shard"
        counts, ids = records.write_shard(str(path), documents, task)
        if path.exists():
            epath.Path(path).copy(to, overwrite=True)  # a runner may do a job twice
    return dict(counts), {"ids": ids}


def answer(act: Callable[..., Said], to: str, *job: object) -> None:
    """What act(*job) tells, or its UserError, as a file."""
    try:
        numbers, arrays = act(*job)
    except UserError as e:
        numbers, arrays = {"fault": str(e)}, {}
    told = io.BytesIO()
    np.savez(told, numbers=np.frombuffer(json.dumps(numbers).encode(), np.uint8), **arrays)
    epath.Path(to).write_bytes(told.getvalue())


def read(path: str) -> Said:
    try:
        with np.load(io.BytesIO(epath.Path(path).read_bytes()), allow_pickle=False) as told:
            arrays = {name: told[name] for name in told.files}
    except FileNotFoundError as e:
        raise UserError(f"the workers have left no {path}: give as --staging a folder that this machine and all of them reach") from e
    numbers = json.loads(arrays.pop("numbers").tobytes())
    if "fault" in numbers:
        raise UserError(numbers["fault"])
    return numbers, arrays
