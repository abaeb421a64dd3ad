"""Folders as transformers writes and reads them (config.json, safetensors) to networks and parameters of ours, and back.

A family is a module with: MODEL (config.json's model_type), plain (a tensor's name as transformers writes it today), copies
(tensors that others determine), names (the table of one network), build (networks of a folder), mine (whether networks are of
the family) and config (config.json of a network). Several networks are a folder each, by their names.
"""
import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding

from ptmjax.convert import bert, electra, folder, t5
from ptmjax.convert.names import Tensors, present, pull, push
from ptmjax.training.build import Build
from ptmjax.training.state import Plan, TrainState
from ptmjax.types import UserError

FAMILIES = (bert, t5, electra)


class Opened(NamedTuple):
    """A folder that was read; tensors are under today's names, without those that others determine."""

    where: Path
    family: ModuleType
    config: dict
    tensors: dict[str, np.ndarray]


def read(where: Path) -> Opened:
    config, raw = folder.read(where)
    family = next((f for f in FAMILIES if f.MODEL == config.get("model_type")), None)
    if family is None:
        known = ", ".join(f.MODEL for f in FAMILIES)
        raise UserError(f"{where / folder.CONFIG} is of a {config.get('model_type')!r} model; known are {known}")
    tensors = {family.plain(name): x for name, x in raw.items() if not name.endswith("position_ids")}
    for copy, owner in family.copies(config).items():
        if copy in tensors and owner in tensors:
            if not np.array_equal(tensors[copy], tensors[owner]):
                raise UserError(f"{where}: {copy} is not equal to {owner}, to which it is tied here: this checkpoint cannot be read")
            del tensors[copy]
    return Opened(where, family, config, tensors)


def load(where: str | Path) -> tuple[Build, dict[str, np.ndarray], list[str]]:
    """(networks, parameters, tensors without a use) of a published folder."""
    opened = read(Path(where))
    try:
        build = opened.family.build(opened.config, opened.tensors)
    except KeyError as e:
        raise UserError(f"{opened.where / folder.CONFIG} has no {e}: is it the {folder.CONFIG} of this model?") from e
    params = take(opened, build)
    if lacks := sorted(build.leaves.keys() - params.keys()):
        raise UserError(f"{where} lacks the tensors of {', '.join(lacks[:4])}: is it whole?")
    return build, params, unused(opened, build)


def take(opened: Opened, build: Build) -> dict[str, np.ndarray]:
    return pull(opened.family.names(build, opened.family.network(opened.tensors)), opened.tensors, build, str(opened.where))


def unused(opened: Opened, build: Build) -> list[str]:
    table = opened.family.names(build, opened.family.network(opened.tensors))
    return sorted(opened.tensors.keys() - {one for *_, theirs in present(table, build) for one in theirs})


def initial(where: str | Path, build: Build, say: Callable[[str], None]) -> dict[str, np.ndarray]:
    """The parameters of `build` that the folder has; says which it lacks, and which of its tensors have no use here."""
    parts = [Path(where) / net for net in sorted(build.factories) if (Path(where) / net / folder.CONFIG).is_file()]
    opened = [read(part) for part in parts or [Path(where)]]
    found = {name: x for one in opened for name, x in take(one, build).items()}
    if not found:
        raise UserError(f"{where} has no parameter of this network, such as {sorted(build.leaves)[0]}: is it of the same family?")
    say(f"{where}: {len(found)} of {len(build.leaves)} parameters are begun with")
    tell(say, where, build.leaves.keys() - found.keys(), "keeps its initial law, the folder lacks it")
    for one in opened:
        tell(say, one.where, unused(one, build), "of the folder has no use here")
    return found


def tell(say: Callable[[str], None], where: str | Path, names, what: str) -> None:
    names = sorted(names)
    if names:
        say(f"{where}: {', '.join(names[:6])}{f' and {len(names) - 6} more' if len(names) > 6 else ''} {what}")


def born(found: Tensors, plan: Plan) -> TrainState:
    """The state at step 0 with the parameters `found` in the place of the initial ones."""
    state = plan.create()
    return dataclasses.replace(state, params=state.params | {name: placed(x, state.params[name].sharding) for name, x in found.items()})


def placed(x: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Every process has x whole and gives its devices their part."""
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def export(build: Build, params: Tensors, where: str | Path, more: Callable[[Path], None] = lambda folder: None) -> None:
    """Writes the folder that transformers opens; a network that no family describes is a UserError that says why.

    more: adds files of its own to the folder (the vocabulary's).
    """
    nets = nnx.eval_shape(lambda: build.make(jax.random.key(0)))
    family = next((f for f in FAMILIES if f.mine(nets)), None)
    if family is None:
        raise UserError(f"networks {sorted(nets)} are of no published family; known are {', '.join(f.MODEL for f in FAMILIES)}")
    configs = {name: family.config(nets[name], build, name) for name in nets}  # says why, where a network has no place there
    tables = {name: family.names(build, name) for name in nets}
    if unnamed := sorted(build.leaves.keys() - {owner for table in tables.values() for _, owner, *_ in present(table, build)}):
        raise UserError(f"the published layout has no place for {', '.join(unnamed[:4])}: this network cannot be exported")
    one = lambda name, at: folder.write(at, configs[name], push(tables[name], params, build), more)
    if len(nets) == 1:
        one(next(iter(nets)), Path(where))
    else:
        for name in nets:
            one(name, Path(where) / name)
