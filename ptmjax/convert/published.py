"""Folders as transformers writes and reads them (config.json, safetensors) to networks and parameters of ours, and back."""
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding

from ptmjax.convert import bert, folder
from ptmjax.convert.names import Tensors, pull, push
from ptmjax.training.build import Build
from ptmjax.types import UserError

FAMILIES = {"bert": bert}  # config.json's model_type -> the module with its names


def read(where: Path) -> tuple[ModuleType, dict, dict[str, np.ndarray]]:
    """(family, config.json, tensors under today's names, without those that others determine)."""
    config, raw = folder.read(where)
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise UserError(f"{where / folder.CONFIG} is of a {kind!r} model; known are {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    tensors = {family.plain(name): x for name, x in raw.items() if not name.endswith("position_ids")}
    for copy, owner in family.DERIVED.items():
        if copy in tensors and owner in tensors:
            if not np.array_equal(tensors[copy], tensors[owner]):
                raise UserError(f"{where}: {copy} is not equal to {owner}, to which it is tied here: this checkpoint cannot be read")
            del tensors[copy]
    return family, config, tensors


def load(where: str | Path) -> tuple[Build, dict[str, np.ndarray], list[str]]:
    """(networks, parameters, tensors without a use) of a published folder."""
    where = Path(where)
    family, config, tensors = read(where)
    try:
        build = family.build(config, tensors)
    except KeyError as e:
        raise UserError(f"{where / folder.CONFIG} has no {e}: is it the {folder.CONFIG} of this model?") from e
    params = pull(family.NAMES, tensors, build.leaves, str(where))
    if lacks := sorted(build.leaves.keys() - params.keys()):
        raise UserError(f"{where} lacks the tensors of {', '.join(lacks[:4])}: is it whole?")
    return build, params, unused(family.NAMES, tensors, build)


def unused(table, tensors: Tensors, build: Build) -> list[str]:
    used = {name.theirs.format(i) for name in table if name.ours in build.leaves
            for i in range(build.leaves[name.ours].shape[0] if "{}" in name.theirs else 1)}
    return sorted(tensors.keys() - used)


def begin(where: str | Path, build: Build, params: Mapping[str, jax.Array], say: Callable[[str], None]) -> dict[str, jax.Array]:
    """`params` with those that the folder has in the place of the initial ones, sharded as these are; says which it lacks."""
    where = Path(where)
    family, _, tensors = read(where)
    found = pull(family.NAMES, tensors, build.leaves, str(where))
    if not found:
        raise UserError(f"{where} has no parameter of this network: the first is {sorted(build.leaves)[0]}")
    for what, names in (("keeps its initial law, the folder lacks it", sorted(build.leaves.keys() - found.keys())),
                        ("of the folder has no use here", unused(family.NAMES, tensors, build))):
        if names:
            say(f"{where}: {', '.join(names[:6])}{f' and {len(names) - 6} more' if len(names) > 6 else ''} {what}")
    return dict(params) | {name: placed(x, params[name].sharding) for name, x in found.items()}


def placed(x: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Every process has x whole and gives its devices their part."""
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def export(build: Build, params: Tensors, where: str | Path, more: Callable[[Path], None] = lambda folder: None) -> None:
    """Writes the folder that transformers opens; a network that no family describes is a UserError that says why."""
    nets = nnx.eval_shape(lambda: build.make(jax.random.key(0)))
    family = next((f for f in FAMILIES.values() if f.is_one(nets)), None)
    if family is None:
        raise UserError(f"networks {sorted(nets)} are of no published family; known are {', '.join(FAMILIES)}")
    config = family.config(nets)
    folder.write(Path(where), config, push(family.NAMES, params, build.leaves), more)
