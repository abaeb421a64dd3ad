"""Checkpoints through Orbax: written in the background, taken up on any mesh, and a broken one never stops a run.

A step is kept with a check sum of each leaf (sums_of), so that a bit that flipped on disk counts as damage too. It is read leaf
by leaf, by path: a node without leaves (a link of an optimizer that keeps nothing) may come and go between versions.
"""
import contextlib
import errno
import functools
import itertools
import logging
import re
import time
import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import v1 as ocp

from ptmjax.parallel.distributed import everywhere, first_alone, gathered, of_the_first
from ptmjax.training.interrupt import PARTING, Stopped
from ptmjax.types import PyTree, UserError

Shapes = Mapping[str, tuple[int, ...]]  # by path
FORMAT = 2  # raise it when paths, shapes or meanings of leaves change
POLL = 1.0  # seconds after which processes ask each other again how a save stands
WRITING, WHOLE, FAILED = range(3)
HIGHER = re.compile("(accuracy|auc|f1)$")  # names of numbers of which more is better
DAMAGE = FileNotFoundError, NotADirectoryError, IsADirectoryError  # other faults of the disk may pass


class Checkpoints:
    """Steps under one folder, of which are kept the newest `keep` and that with the best held-out number `best` ("validation/loss";
    less is better, but for accuracies, AUC and F1); `say` hears about a step that was passed over.

    A save first copies the arrays, so the donated state of the next step does no harm; an error of a save that runs in
    the background is raised by the next save or by close().
    """

    def __init__(self, folder: epath.PathLike, keep: int = 2, say: Callable[[str], None] = print, best: str | None = None):
        self.folder, self.keep, self.say, self.best = local_or_remote(folder), keep, say, best
        self.evaluated: dict[int, Mapping[str, float]] = {}  # what is known of steps: saved with them, so a later call knows it too
        self.manager: ocp.training.Checkpointer | None = None
        self.saving: tuple[int, ocp.AsyncResponse] | None = None
        self.found = False  # whether the folder was there: then it must stay
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax tells every step of a save,
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # and a damaged file in pages: it is named in one line below
        warnings.filterwarnings("ignore", r"coroutine .* was never awaited", RuntimeWarning)  # it leaves those where a save or read fails

    def steps(self) -> list[int]:
        """Whole steps, oldest first."""
        if not self.folder.exists():
            return []
        if not self.folder.is_dir():
            raise UserError(f"{self.folder} is a file, not the folder of the checkpoints: move it away and start again")
        return sorted(int(p.name) for p in self.folder.iterdir() if re.fullmatch("[0-9]+", p.name))

    def restore(self, like: Callable[[int], PyTree], optional: Mapping[str, float] = {}) -> PyTree | None:
        """The newest step that can be read, placed as the ShapeDtypeStructs of like(step) say; None where there is no step.
        optional: paths of scalars that a step may lack, and what they then are; where the state has none of them a step's are left out.

        A damaged step is named, and set aside under another name once an older one was read; where none can be read nothing
        is moved and it is a UserError, as is a step of another model.
        """
        for path in sorted(self.folder.glob("*tmp*")) if self.folder.exists() else []:
            self.say(f"checkpoint {path} is half-written (the run was killed in a save) and is passed over")
        damaged: dict[int, str] = {}
        while (step := self.newest({*damaged})) not in {-1, *damaged}:
            state, why = self.attempt(step, functools.partial(whole, like=like(step), optional=optional))
            if state is not None:
                self.found = True
                self.set_aside(damaged)
                return state
            damaged[step] = why
        if damaged:
            why = next(iter(damaged.values()))
            raise UserError(f"no checkpoint in {self.folder} can be read ({why}): move that folder away to begin at step 0")
        return None

    def newest(self, but: Set[int]) -> int:
        """The newest step that process 0 finds, of others than `but`; -1: none."""
        here = self.steps() if jax.process_index() == 0 else []
        return of_the_first(max(set(here) - but, default=-1), "finding a checkpoint")

    def params(self, like: PyTree, step: int | None = None) -> tuple[int, PyTree] | None:
        """(step, parameters) of the newest step that can be read, or of `step` alone; the folder is left as it is."""
        return self.read(functools.partial(part, like=like), step)

    def some_params(self, choose: Callable[[Shapes], Iterable[str]]) -> tuple[int, dict[str, np.ndarray]] | None:
        """(step, parameters by path) of the newest step that can be read: those that `choose` names of the shapes that it holds,
        whole on every process."""
        return self.read(functools.partial(some, choose=choose))

    def read(self, how: Callable[[epath.Path], tuple[PyTree, Mapping[str, int]]], step: int | None = None) -> tuple[int, PyTree] | None:
        """(step, parameters) as `how` reads them.

        A run that goes on beside may delete a step while it is read: it has saved a newer one before. All processes read the step
        that process 0 finds.
        """
        tried = {-1}
        while (at := self.newest(tried) if step is None else step) not in tried:
            tried.add(at)
            found, fault = self.attempt(at, how)
            if found is not None:
                return at, found["params"]
            if step is not None:
                raise UserError(f"checkpoint {self.folder / str(step)} cannot be read ({fault}): name another step")
            if at in self.steps():
                self.say(f"checkpoint {self.folder / str(at)} cannot be read and is passed over: {fault}")
        return None

    def best_of(self, steps: Iterable[int]) -> int | None:
        """The step with the best number `best`, the latest of equals; None where none of these steps has it."""
        return self.best_in({step: self.numbers(step) for step in steps}) if self.best else None

    def best_in(self, numbers: Mapping[int, Mapping[str, float] | None]) -> int | None:
        found = {step: x for step, those in numbers.items() if (x := (those or {}).get(self.best)) is not None}
        more = HIGHER.search(self.best)
        return max(found, key=lambda step: (found[step] if more else -found[step], step), default=None)

    def numbers(self, step: int) -> Mapping[str, float] | None:
        """The held-out numbers with which a step was saved ({}: it was not evaluated); None where its description cannot be read, now."""
        if step not in self.evaluated:
            try:
                about = ocp.metadata(self.folder / str(step)).custom_metadata or {}
            except Exception:  # whatever a damaged file makes of Orbax; whoever reads the step tells of it
                return None
            self.evaluated[step] = about.get("heldout", {})
        return self.evaluated[step]

    def precious(self, steps: Sequence[int]) -> list[bool]:
        """Which steps stay for their numbers: the best, and any whose numbers cannot be read, for it may be that."""
        numbers = {step: self.numbers(step) for step in steps} if self.best else {}
        best = self.best_in(numbers) if self.best else None
        return [step == best or step in numbers and numbers[step] is None for step in steps]

    def improved(self, step: int, numbers: Mapping[str, float]) -> bool:
        """Whether no step that is kept has so good a `best` as `numbers`, those of a step that may be saved."""
        if self.best not in numbers:
            return False
        there = {*self.steps(), *self.evaluated} - {step}  # one may still be on its way to the disk
        self.evaluated[step] = numbers
        return bool(of_the_first(self.best_of({*there, step}) == step, "an evaluation"))  # all processes save, or none does

    def attempt(self, step: int, read: Callable[[epath.Path], tuple[PyTree, Mapping[str, int]]]) -> tuple[PyTree | None, str]:
        """(what was read, "") or, where the step is damaged for any process, (None, why). What may pass by itself (no access,
        no memory, a network) is raised: it must not cost a step."""
        state, sums, fault = None, {}, None
        try:
            state, sums = read(self.folder / str(step))
        except (UserError, MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as e:  # whatever a damaged file makes of Orbax
            cause = cause_of(e)
            if isinstance(cause, OSError) and not isinstance(cause, DAMAGE) and cause.errno != errno.ESTALE:
                raise UserError(f"checkpoint {self.folder / str(step)} cannot be opened ({reason_of(e)}): mend that and start again") from e
            fault = e
        if isinstance(fault and cause_of(fault), DAMAGE) and jax.process_count() > 1 and not (self.folder / str(step)).is_dir():
            me = jax.process_index()
            raise UserError(f"checkpoint {self.folder / str(step)}, which process 0 reads, is not there for process {me}: let all see the "
                            "same --workdir")
        if everywhere(fault is None, f"reading step {step}"):  # before the sums, which all processes make together
            found = sums_of(state) if sums else {}
            wrong = next((name for name in sorted(sums) if found.get(name) != sums[name]), None)
            if everywhere(wrong is None, f"reading step {step}"):
                return state, ""
            return None, f"the numbers of {wrong or 'a leaf'} are not those that were saved"
        return None, "another process could not read it" if fault is None else reason_of(fault)

    def set_aside(self, damaged: Mapping[int, str]) -> None:
        for step, why in damaged.items():
            aside = ""
            self.evaluated.pop(step, None)
            if jax.process_index() == 0:
                taken = {p.name for p in self.folder.iterdir()}
                aside = next(name for n in itertools.count(1) if (name := f"broken-{step}-{n}") not in taken)
                (self.folder / str(step)).rename(self.folder / aside)
            self.say(f"checkpoint {self.folder / str(step)} cannot be read and was moved to {aside}: {why}")
        if damaged:
            everywhere(True, "setting damaged checkpoints aside")

    def save(self, step: int, state: PyTree, numbers: Mapping[str, float] = {}) -> None:
        """Starts to write `state` as `step`, which was evaluated as `numbers`; waits for the save before it. A full or read-only
        disk is a UserError."""
        self.wait()
        first_alone(self.check_folder, f"saving step {step}")
        self.evaluated[step] = numbers
        try:
            if self.manager is None:  # it removes half-written steps
                policies = ocp.training.preservation_policies
                kept = policies.AnyPreservationPolicy([policies.LatestN(self.keep), Best(self.precious)])
                self.manager = ocp.training.Checkpointer(self.folder, preservation_policy=kept, cleanup_tmp_directories=True)
            about = {"format": FORMAT, "sums": sums_of(state), "heldout": dict(numbers)}
            self.saving, self.found = (step, self.manager.save_async(step, state, force=True, custom_metadata=about)), True
        except Exception as e:
            raise self.failed(step, e) from e

    def check_folder(self) -> None:
        """A UserError where somebody has removed the folder since the run began: what is there no longer cannot be gone on from."""
        if self.found and not self.folder.is_dir():
            raise UserError(f"{self.folder} is gone, it was removed while the run was under way: put it back and start again, or begin at "
                            "step 0 in another folder")

    def wait(self) -> None:
        """Returns once the last save is on disk. Several processes ask each other how it stands meanwhile: Orbax alone would wait for
        minutes where one of them has failed or is lost."""
        if self.saving is None:
            return
        (step, response), self.saving = self.saving, None
        fault, ended = None, []
        limit = None if jax.process_count() == 1 else POLL
        while not ended or WRITING in ended and FAILED not in ended:
            since = time.monotonic()
            try:
                response.result(timeout=limit)
                now = WHOLE
            except Exception as e:  # a TimeoutError that comes before its time is one of the disk
                waits = isinstance(e, TimeoutError) and limit is not None and time.monotonic() - since >= limit
                fault, now = (None, WRITING) if waits else (e, FAILED)
            ended = gathered(now, f"saving step {step}")
        if fault is not None:
            raise self.failed(step, fault) from fault
        if FAILED in ended:
            raise self.failed(step, UserError(f"process {ended.index(FAILED)} says why"))

    def failed(self, step: int, fault: Exception) -> Exception:
        """The manager is given up with the save: it would raise the same fault again when it is closed."""
        if lost(cause_of(fault)):
            return jax.errors.JaxRuntimeError(str(cause_of(fault)))
        manager, self.manager = self.manager, None
        with contextlib.suppress(Exception):
            manager and manager.close()
        return UserError(f"checkpoint {self.folder / str(step)} could not be written ({reason_of(fault)}): mend the disk and start again, "
                         "the last whole step is kept")

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type | None, fault: BaseException | None, trace: object) -> None:
        """A process among others that ends by a fault waits for none of them: it may be the only one, and they are where they do not
        hear of it. What it was saving has a moment to become whole, as it does where all end alike."""
        if fault is None or jax.process_count() == 1 or isinstance(fault, Stopped):
            self.close()
        elif self.saving is not None and not lost(fault):
            with contextlib.suppress(Exception):
                self.saving[1].result(timeout=PARTING)

    def close(self) -> None:
        self.wait()
        if self.manager is not None:
            self.manager.close()


def lost(fault: BaseException | None) -> bool:
    """Whether it is what jax makes of another process that is gone."""
    return isinstance(fault, jax.errors.JaxRuntimeError) and jax.process_count() > 1


class Best:
    """A preservation policy: `which` says it of the steps that are there.

    Orbax's own (BestN) reads what it ranks from a file beside the state, and a damaged one would stop every save.
    """

    def __init__(self, which: Callable[[Sequence[int]], list[bool]]):
        self.which = which

    def should_preserve(self, checkpoints: Sequence, *, context: object) -> list[bool]:
        return self.which([checkpoint.step for checkpoint in checkpoints])


def local_or_remote(folder: epath.PathLike) -> epath.Path:
    """The absolute path of a local folder; a remote one (gs://...) is absolute already."""
    path = epath.Path(folder)
    return path if "://" in str(folder) else path.absolute()


def whole(path: epath.Path, like: PyTree, optional: Mapping[str, float]) -> tuple[PyTree, Mapping[str, int]]:
    """The state, and the sums that it was saved with ({}: before there were any)."""
    stored, want = ocp.metadata(path), leaves(like)
    compare(path, stored, like, optional=optional)
    wanted = lambda where, _: want.get(spelt(where), ocp.PLACEHOLDER)
    found = leaves(ocp.load(path, jax.tree_util.tree_map_with_path(wanted, stored.metadata)))
    get = lambda name, x: found[name] if name in found else np.asarray(optional[name], x.dtype)
    state = jax.tree.unflatten(jax.tree.structure(like), [respelt(get(name, x), x.sharding) for name, x in want.items()])
    return state, {name: x for name, x in stored.custom_metadata.get("sums", {}).items() if name in want}


def respelt(x: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
    """x, its sharding spelt as the step spells that of its outputs: Orbax gives a key on one device, or the words of any key,
    another spelling, for which the step would compile twice."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.device_put(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
    return jax.device_put(x, sharding)


def part(path: epath.Path, like: PyTree) -> tuple[PyTree, Mapping[str, int]]:
    """The parameters alone, and their sums."""
    stored = ocp.metadata(path)
    compare(path, stored, {"params": like}, part="params/")
    return loaded(path, {"params": like}), {
        name: x for name, x in stored.custom_metadata.get("sums", {}).items() if name.startswith("params/")}


def loaded(path: epath.Path, like: PyTree) -> PyTree:
    """Of what is stored, the leaves that `like` has."""
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    with context:
        return ocp.load(path, like)


def some(path: epath.Path, choose: Callable[[Shapes], Iterable[str]]) -> tuple[PyTree, Mapping[str, int]]:
    """The parameters that `choose` names, as numpy has them, and their sums."""
    stored = ocp.metadata(path)
    check_format(path, stored)
    have = stored.metadata["params"]
    names = list(choose({name: tuple(x.shape) for name, x in have.items()}))
    found = loaded(path, {"params": {name: np.empty(have[name].shape, have[name].dtype) for name in names}})
    sums = stored.custom_metadata.get("sums", {})
    return found, {f"params/{name}": sums[f"params/{name}"] for name in names if sums}


def sums_of(tree: PyTree) -> dict[str, int]:
    """path -> the leaf's bits as unsigned numbers of its width, added modulo 2 ** 32: exact, so the same on every mesh, and
    another one after any single flipped bit. Made where the leaves live: numpy's stay with it, one at a time."""
    named = leaves(tree)
    sums = {name: added_here(x) for name, x in named.items() if isinstance(x, np.ndarray)}
    if rest := {name: x for name, x in named.items() if name not in sums}:
        meshes = [x.sharding.mesh for x in rest.values() if isinstance(getattr(x, "sharding", None), NamedSharding)]
        shared = NamedSharding(meshes[0], P()) if meshes else None  # each process can read them
        sums |= dict(zip(rest, np.asarray(jax.jit(added, out_shardings=shared)(tuple(rest.values()))).tolist()))
    return {name: sums[name] for name in named}


def added_here(x: np.ndarray) -> int:
    """The same by numpy."""
    return int(np.ascontiguousarray(x).view(f"uint{8 * min(x.dtype.itemsize, 4)}").sum(dtype=np.uint64)) % 2**32


def added(arrays: Sequence[jax.Array]) -> jax.Array:
    """uint32 [len(arrays)]."""
    one = lambda x: jnp.sum(words(x).astype(jnp.uint32), dtype=jnp.uint32)
    return jnp.stack([one(x) for x in arrays])


def words(x: jax.Array) -> jax.Array:
    """The bits of x as unsigned integers."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(x)
    if x.dtype == bool:
        return x
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return words(jnp.stack([x.real, x.imag]))
    return jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * min(x.dtype.itemsize, 4)}"))


def cause_of(fault: BaseException) -> BaseException:
    """The innermost cause: Orbax wraps the truth in pages of text."""
    while fault.__cause__ is not None:
        fault = fault.__cause__
    return fault


def reason_of(fault: Exception) -> str:
    """The innermost cause in one line."""
    fault = cause_of(fault)
    return " ".join(f"{type(fault).__name__}: {fault}".split())[:200]


def leaves(tree: PyTree) -> dict[str, jax.Array]:
    """path -> leaf; tuples, lists, dicts and dataclasses alike, as Orbax stores them."""
    return {spelt(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def spelt(path: Sequence) -> str:
    """A key path of jax.tree_util as a name."""
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def compare(path: epath.Path, stored: ocp.CheckpointMetadata, like: PyTree, part: str = "", optional: Container[str] = ()) -> None:
    """A UserError where this version does not read the stored format (check_format), or that names the first leaf (under `part`) in
    which the stored step and the present run differ; those that are `optional` may be in one alone."""
    check_format(path, stored)
    have, want = leaves(stored.metadata), leaves(like)
    have = {name: x for name, x in have.items() if name.startswith(part)}
    for name in sorted(name for name in have.keys() ^ want.keys() if name not in optional):
        first, second = ("has", "lacks") if name in have else ("lacks", "has")
        raise UserError(f"checkpoint {path} {first} {name}, the present run {second} it: it is of another model, optimizer or "
                        "version of ptmjax; choose another --workdir")
    for name, x in ((name, x) for name, x in want.items() if name in have):
        key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        if not key and (tuple(have[name].shape) != x.shape or have[name].dtype != x.dtype):
            why = "is it of another model? Choose another --workdir"
            why = "a stage with carry keeps its batch size" if name.startswith("carry/") else why
            raise UserError(f"checkpoint {path}: {name} is {have[name].dtype}{list(have[name].shape)}, "
                            f"the present run has {x.dtype}{list(x.shape)}: {why}")


def check_format(path: epath.Path, stored: ocp.CheckpointMetadata) -> None:
    """A UserError where this version does not read the stored format. A step whose own description is lost (Orbax gives None for
    it) is damaged, not another model's: a ValueError."""
    version = (stored.custom_metadata or {}).get("format")
    if version is None or stored.metadata is None:
        raise ValueError("its description is damaged")
    if version != FORMAT:
        raise UserError(f"checkpoint {path} has format {version}, this version of ptmjax reads {FORMAT}: go on with the version "
                        "that wrote it, or choose another --workdir")
