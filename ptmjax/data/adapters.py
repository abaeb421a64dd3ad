"""SeqIO: what registry.py holds in its registries, so that plain seqio.get_dataset gives what the loader gives.

Of a mixture SeqIO gives the same examples at the same rates, but draws which task comes next, and `index` is the task's own number.
The only file of data/ that imports seqio and tensorflow. seqio's own packers and EncoderFeatureConverter do not fit these
features (they count non-zeros, and score only MASK): use neither.
"""
import collections
import dataclasses
import functools
import sys
from collections.abc import Iterator

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from ptmjax.data import registry, sources, text
from ptmjax.data.order import counter, static
from ptmjax.data.records import SPLITS, records
from ptmjax.data.task import Mixture, Task
from ptmjax.types import UserError, kind_of


@dataclasses.dataclass(frozen=True)
class Tfds:
    """A source: a TFDS dataset that is prepared on this machine (TFDS_DATA_DIR), NAME[/CONFIG][:VERSION][@SPLIT]; its `field` is a
    document. SPLIT, "train" by default, is all that is read: what is held out of it, the task says."""

    name: str
    field: str = "text"

    def _opened(self) -> tuple[tfds.core.DatasetBuilder, str]:
        name, _, split = self.name.partition("@")
        split = split or "train"
        try:
            found = tfds.builder(name)
        except Exception as e:  # its own, and whatever a file system raises
            raise UserError(f"tfds:{self.name} cannot be opened ({type(e).__name__}: {text.first_line(e)}): check its name") from e
        if not found.info.splits:
            raise UserError(f"tfds:{self.name} is not prepared in {found.data_dir}: `tfds build {name}` does that (TFDS_DATA_DIR)")
        if split not in found.info.splits:
            raise UserError(f"tfds:{self.name} has no split {split!r}, it has {', '.join(sorted(found.info.splits))}: name one behind @")
        if self.field not in found.info.features:
            raise UserError(f"tfds:{self.name} has no field {self.field!r}, it has {', '.join(sorted(found.info.features))}: name one")
        return found, split

    def documents(self, faults: collections.Counter) -> Iterator[str]:
        found, split = self._opened()
        order = tfds.ReadConfig(interleave_cycle_length=1)
        rows = found.as_dataset(split=split, shuffle_files=False, read_config=order, decoders=tfds.decode.PartialDecoding({self.field}))
        for number, row in enumerate(rows.as_numpy_iterator(), 1):
            yield from sources.document(row, self.field, f"tfds:{self.name}, row {number}", faults)

    def parts(self) -> list["Tfds"]:
        return [self]

    def key(self, memo=None) -> dict[str, str]:
        found, split = self._opened()
        about = found.info.splits[split]
        return {"source": f"tfds {found.info.full_name} {split} {about.num_examples} {about.num_bytes}", "field": self.field}

    def size(self) -> int:
        found, split = self._opened()
        return found.info.splits[split].num_bytes


class CutRecords(seqio.DataSource):
    """The records of a task, cut in memory at first use, with their number ("index") and their split.

    Shards by number modulo the count of shards, never by file: any number of hosts sees each record once.
    """

    def __init__(self, task: Task):
        self.task = task
        self._cut = {}
        super().__init__(splits=SPLITS)

    def records(self, split: str) -> list[dict[str, np.ndarray]]:
        if split not in self._cut:
            self._cut[split] = records(self.task, split)
        return self._cut[split]

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return True

    def list_shards(self, split: str) -> list[str]:
        return [f"{split}-{number}" for number in range(self.task.shards)]

    def get_dataset(
        self, split="train", shuffle=True, seed=None, shard_info=None, *, sequence_length=None, use_cached=False, num_epochs=1
    ) -> tf.data.Dataset:
        """Columns of the record, index int32 [] and split (a string); the last three arguments are SeqIO's, without effect here."""
        found = self.records(split)
        mine = np.arange(len(found))[shard_info.index :: shard_info.num_shards] if shard_info else np.arange(len(found))
        if shuffle:
            np.random.default_rng(seed).shuffle(mine)

        def read() -> Iterator[dict]:
            for index in mine:
                yield {**found[index], "index": np.int32(index), "split": split}

        columns = {name: tf.TensorSpec([None], kind) for name, kind in self.task.cut.schema.items()}
        return tf.data.Dataset.from_generator(
            read, output_signature={**columns, "index": tf.TensorSpec([], tf.int32), "split": tf.TensorSpec([], tf.string)}
        )


@dataclasses.dataclass(frozen=True)
class Corrupt:
    """Preprocessor: the task's corruption, with the randomness that the loader gives the same record in the same epoch.

    The k-th time that a record passes is its epoch k. SeqIO's own seed moves the order only: `seed` and `dupe_factor` here
    are the loader's.
    """

    task: Task
    source: CutRecords
    seed: int = 0
    dupe_factor: int | None = None

    def __call__(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        def corrupt() -> Iterator[dict]:
            passed = collections.Counter()
            for example in dataset.as_numpy_iterator():
                index, split = int(example.pop("index")), example.pop("split").decode()
                rng = counter(self.seed, self.task.name, index, static(passed[index], self.dupe_factor))
                passed[index] += 1
                yield {**self.task.corruption(example, rng, self.source.records(split)), "index": np.int32(index)}

        return tf.data.Dataset.from_generator(corrupt, output_signature=self.signature())

    def signature(self) -> dict[str, tf.TensorSpec]:
        """Static shapes and dtypes, from the first training record: corruptions give constant shapes."""
        lookup = self.source.records("train")
        out = self.task.corruption(lookup[0], counter(self.seed, self.task.name, 0, 0), lookup)
        return {**{key: tf.TensorSpec(x.shape, x.dtype) for key, x in out.items()}, "index": tf.TensorSpec([], tf.int32)}


def add(entry: registry.Entry) -> None:
    """Adds a task or mixture to SeqIO's registry; the tasks of a mixture are there."""
    if isinstance(entry.task, Mixture):
        seqio.MixtureRegistry.add_provider(entry.task.name, Mixed(entry.task))
        return
    task, source = entry.task, CutRecords(entry.task)
    ids = seqio.PassThroughVocabulary(0)  # the features are ids already; its size is not read
    features = {
        key: seqio.Feature(ids, add_eos=False, dtype=tf.as_dtype(kind_of(key).dtype), rank=kind_of(key).rank - 1)
        for key in (*sorted(task.corruption.features), "index")
    }
    steps = [seqio.CacheDatasetPlaceholder(), Corrupt(task, source, entry.seed, entry.dupe_factor)]
    seqio.TaskRegistry.add(task.name, source=source, preprocessors=steps, output_features=features)


def remove(name: str) -> None:
    held = seqio.MixtureRegistry if name in seqio.MixtureRegistry.names() else seqio.TaskRegistry
    held.remove(name)


def names() -> list[str]:
    return [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]


class Mixed(seqio.Mixture):
    """Of SeqIO's registry, at the rates of ours."""

    def __init__(self, mixture: Mixture):
        self.mixture = mixture
        rate = lambda task: dict(zip((t.name for t in mixture.tasks), self.shares))[task.name]
        super().__init__(mixture.name, [(task.name, rate) for task in mixture.tasks])

    @functools.cached_property
    def shares(self) -> tuple[float, ...]:
        """Where they follow from sizes, the text of every task is cut."""
        size = lambda name: len(seqio.TaskRegistry.get(name).source.records("train")) if self.mixture.exponents else 1
        return self.mixture.shares([size(task.name) for task in self.mixture.tasks])


def read(name: str) -> Task | Mixture:
    """What SeqIO itself has under a name, of our tasks."""
    if name not in seqio.MixtureRegistry.names():
        return _ours(seqio.TaskRegistry.get(name))
    found = seqio.MixtureRegistry.get(name)
    return Mixture(name, tuple(_ours(task) for task in found.tasks), tuple(found.get_rate(task) for task in found.tasks))


def _ours(task: seqio.Task) -> Task:
    for step in task.preprocessors:
        if isinstance(step, Corrupt):
            return step.task
    raise UserError(f"task {task.name!r} is SeqIO's own and has no ptmjax corruption: register it with ptmjax.data.registry.register")


registry.mirror(sys.modules[__name__])
