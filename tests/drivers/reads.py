"""Which records the loader of a process reads, and which rows of the global batches it then has: python reads.py MESHES [ADDRESS PROCESSES
PROCESS], MESHES being data,fsdp,model:...  Prints for each mesh a JSON of training and evaluation."""
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np  # noqa: E402

from ptmjax.data import loader, order  # noqa: E402
from ptmjax.parallel import distributed  # noqa: E402
from ptmjax.parallel.sharding import rows_sharding  # noqa: E402
from tests.drivers import tiny  # noqa: E402

STEPS = 5


class Counting(Sequence):
    """Records that note which of them is read."""

    def __init__(self, records: Sequence[Mapping]):
        self.records, self.read = records, []

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Mapping:
        self.read.append(index)
        return self.records[index]


def held(batch: Mapping) -> dict[int, str]:
    """Row -> digest of all that stands in it, of the rows that this process' devices hold."""
    rows = {}
    for key in sorted(batch):
        for shard in batch[key].addressable_shards:
            for row, x in zip(range(*shard.index[0].indices(len(batch[key]))), np.asarray(shard.data)):
                rows.setdefault(row, {}).setdefault(key, set()).add(x.tobytes())
    assert all(len(found) == 1 for keys in rows.values() for found in keys.values())  # devices that hold one row hold the same
    return {row: hashlib.sha256(b"".join(x for key in sorted(keys) for x in keys[key])).hexdigest() for row, keys in rows.items()}


def told(source: loader.Source, batches: Iterable[Mapping]) -> dict:
    return {"batches": [held(batch) for batch in batches], "read": source.records.read}


def reads(shape: Sequence[int]) -> dict:
    sharding = rows_sharding(tiny.mesh_of(*shape))
    made = [loader.Source(tiny.RECORDS, order.Shuffled(len(tiny.RECORDS), 1), tiny.mask, 1, "tiny") for _ in range(2)]
    for source in made:
        source.records = Counting(tiny.RECORDS)  # after it has looked at the first record for its shapes
    return {"training": told(made[0], loader.batches(made[0], tiny.ROWS, sharding, end=STEPS)),
            "evaluation": told(made[1], loader.evaluation(made[1], tiny.ROWS, sharding, tiny.HELDOUT))}


if __name__ == "__main__":
    meshes, *join = sys.argv[1:]
    if join:
        distributed.start(join[0], int(join[1]), int(join[2]))
    print(json.dumps([reads([int(n) for n in mesh.split(",")]) for mesh in meshes.split(":")]))
