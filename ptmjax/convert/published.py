"""Folders as transformers writes and reads them (config.json, safetensors) to networks and parameters of ours, and back.

A family is a module with: MODEL (config.json's model_type), TEXT (names of the symbols before and behind a text, and of the arrays
that the model reads), fields (config.json checked and in one spelling), plain (a tensor's name as transformers writes it today),
copies (tensors that others determine), names (the table of one network), build (networks of a folder), mine (whether networks are
of the family), config (config.json of a network) and ids (the vocabulary's part of it). Several networks are a folder each, by
their names.
"""
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding

from ptmjax.convert import albert, bert, electra, ernie, folder, roberta, t5, xlm
from ptmjax.convert.names import Tensors, present, pull, push
from ptmjax.convert.network import need, need_equal, shapes
from ptmjax.training.build import Build
from ptmjax.training.state import Plan, TrainState
from ptmjax.types import UserError

FAMILIES = (xlm, roberta, bert, t5, electra, albert, ernie)  # a network is of the first whose it is; ERNIE's is BERT's


class Opened(NamedTuple):
    """A folder that was read; config holds the family's fields, tensors are under today's names, without those that others determine."""

    where: Path
    family: ModuleType
    config: dict
    tensors: dict[str, np.ndarray]


class Vocabulary(Protocol):
    symbols: Mapping[str, int]  # of pad, eos, ...: those that it has

    def save(self, folder: Path, before: Sequence[str], after: Sequence[str], inputs: Sequence[str], between: Sequence[str] = ()) -> None:
        """Writes its files. before, after: names of the symbols around a text; inputs: of the arrays that the model reads; between: of
        the symbols that a pair of texts has besides."""


def read(where: Path) -> Opened:
    config, raw = folder.read(where)
    family = next((f for f in FAMILIES if config.get("model_type") in types(f)), None)
    if family is None:
        known = ", ".join(sorted(name for f in FAMILIES for name in types(f)))
        raise UserError(f"{where / folder.CONFIG} is of a {config.get('model_type')!r} model; known are {known}")
    config = family.fields(config, str(where / folder.CONFIG))
    tensors = {family.plain(name): x for name, x in raw.items() if not name.endswith("position_ids")}
    for copy, owner in family.copies(config).items():
        if copy in tensors and owner in tensors:
            if not np.array_equal(tensors[copy], tensors[owner]):
                raise UserError(f"{where}: {copy} is not equal to {owner}, to which it is tied here: this checkpoint cannot be read")
            del tensors[copy]
    return Opened(where, family, config, tensors)


def types(family: ModuleType) -> tuple[str, ...]:
    """What model_type says of its layout."""
    return (family.MODEL, *getattr(family, "ALSO", ()))


def load(where: str | Path) -> tuple[Build, dict[str, np.ndarray], list[str]]:
    """(networks, parameters, tensors without a use) of a published folder."""
    opened = read(Path(where))
    build = opened.family.build(opened.config, opened.tensors)
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
    for one in opened:
        check_same(one, build, say)
    found = {name: x for one in opened for name, x in take(one, build).items()}
    if not found:
        raise UserError(f"{where} has no parameter of this network, such as {sorted(build.leaves)[0]}: is it of the same family?")
    say(f"{where}: {len(found)} of {len(build.leaves)} parameters are begun with")
    tell(say, where, build.leaves.keys() - found.keys(), "keeps its initial law, the folder lacks it")
    for one in opened:
        tell(say, one.where, unused(one, build), "of the folder has no use here")
    return found


def check_same(opened: Opened, build: Build, say: Callable[[str], None]) -> None:
    """A UserError where the folder's network is of another config than ours; one that no config describes is told."""
    net, family = opened.family.network(opened.tensors), opened.family
    if net not in build.factories:
        return  # nothing of it is taken
    try:
        need(family.mine(shapes(build)), f"it is no {family.MODEL}")
        ours = family.fields(described(family, build, net), folder.CONFIG)
    except UserError as e:
        say(f"{opened.where}: parameters are taken by name and shape alone, {e}")
        return
    theirs, free = opened.config, ("dropout", "initializer")
    differ = [f"{key}: {theirs[key]} vs {x}" for key, x in ours.items() if x != theirs[key] and not any(word in key for word in free)]
    if differ:
        raise UserError(f"{opened.where / folder.CONFIG} is of another network than this one ({', '.join(differ)}, theirs vs ours): "
                        "choose its settings")


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


def described(family: ModuleType, build: Build, net: str) -> dict:
    """config.json of a network; a UserError where a folder of that config would be another network when it is read."""
    config = family.config(shapes(build)[net], build, net)
    tensors = {one for *_, theirs in present(family.names(build, net), build) for one in theirs}
    layout = family.build(family.fields(config, folder.CONFIG), tensors)
    need(net in layout.factories, f"the {net}'s head is another")
    need_equal(build, layout, net)
    return config


def export(build: Build, params: Tensors, where: str | Path, vocabulary: Vocabulary | None = None) -> None:
    """Writes the folder that transformers opens, whole or not at all; a network that no family describes is a UserError that says why."""
    nets = shapes(build)
    family = next((f for f in FAMILIES if f.mine(nets)), None)
    if family is None:
        raise UserError(f"networks {sorted(nets)} are of no published family; known are {', '.join(f.MODEL for f in FAMILIES)}")
    ids = {} if vocabulary is None else family.ids(vocabulary.symbols)
    configs = {net: described(family, build, net) for net in nets}
    for config in configs.values():
        for name, id in ids.items():
            need(config.setdefault(name, id) == id, f"its {name} is {config[name]}, behind which positions begin, the vocabulary's {id}: "
                 "train with embedders.Positions.offset one above the latter")
    with folder.new(Path(where)) as part:
        for net, config in configs.items():
            at = part if len(nets) == 1 else part / net
            folder.write(at, config, push(family.names(build, net), params, build))
            if vocabulary is not None:
                vocabulary.save(at, *family.TEXT)
