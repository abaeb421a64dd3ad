"""ptmjax fill: what a masked language model puts in the place of [MASK]."""
import argparse
from collections.abc import Sequence

import jax
import numpy as np
from rich.console import Console
from rich.markup import escape

from ptmjax.cli import session
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.models.network import Network
from ptmjax.objectives.token import Mlm
from ptmjax.types import Array, Batch, UserError, at_least, slots

HELP = "fill [MASK] in sentences with the model of a work folder"
MARK = "[MASK]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_workdir(parser)
    session.add_cache(parser)
    parser.add_argument("text", nargs="+", help=f"sentences with one or more {MARK}")
    parser.add_argument("--top", type=int, default=5, metavar="K", help="how many candidates to show (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    at_least(1, top=args.top)
    for text in args.text:
        if MARK not in text:
            raise UserError(f"there is no {MARK} in {text!r}: put one where a word is to be found")
    held = session.saved(args.workdir)
    stage = held.stages[-1]
    task, build = held.data(stage, args.cache).task, held.build(stage)
    step, params = session.parameters(args.workdir, session.on_one_device(build))
    term = next((term for term in getattr(stage.objective, "terms", ()) if isinstance(term, Mlm)), None)
    if term is None:
        raise UserError(f"the run in {args.workdir} has no masked language model to fill with")
    batch = rows(args.text, task.vocabulary)
    zeros = {key: np.zeros_like(batch["tokens"]) for key in task.corruption.features if key == "types"}
    batch, top = batch | zeros, min(args.top, task.vocabulary.size)
    masks = int(batch["weights"].sum(1).max())
    answer = jax.jit(lambda params, batch: best(build.nets(params)[stage.objective.net], term.head, batch, masks, top))
    ids, chances = map(np.asarray, answer(params, batch))
    console = Console(soft_wrap=True)
    console.print(f"step {step} of {args.workdir}", highlight=False)
    for text, row, found, chance in zip(args.text, batch["weights"], ids, chances):
        show(console, text, found[: int(row.sum())], chance[: int(row.sum())], task.vocabulary)
    return 0


def rows(texts: Sequence[str], vocabulary: Vocabulary) -> Batch:
    """CLS pieces MASK pieces SEP of every text, padded to the longest: tokens, segments, weights (1 at the masks)."""
    lists = []
    for text in texts:
        parts = [vocabulary.encode(part).tolist() for part in text.split(MARK)]
        lists.append([vocabulary.cls, *parts[0], *(i for part in parts[1:] for i in (vocabulary.mask, *part)), vocabulary.sep])
    length = max(map(len, lists))
    tokens = np.array([ids + [vocabulary.pad] * (length - len(ids)) for ids in lists], np.int32)
    segments = np.array([[1] * len(ids) + [0] * (length - len(ids)) for ids in lists], np.int32)
    return {"tokens": tokens, "segments": segments, "weights": (tokens == vocabulary.mask).astype(np.float32)}


def best(net: Network, head: str, batch: Batch, masks: int, top: int) -> tuple[Array, Array]:
    """(ids, probabilities) at the first `masks` masks of every row, each [B, masks, top]."""
    scores = net.head(head, net.encode(batch).state, slots(batch["weights"], masks))
    chances, ids = jax.lax.top_k(jax.nn.softmax(scores), top)
    return ids, chances


def show(console: Console, text: str, ids: np.ndarray, chances: np.ndarray, vocabulary: Vocabulary) -> None:
    """The text with the best candidates in it, and all of them with their probabilities."""
    written = lambda i: escape(vocabulary.piece(i).lstrip("\u2581") or vocabulary.piece(i))
    parts = [escape(part) for part in text.split(MARK)]
    filled = parts[0] + "".join(f"[bold green]{written(i[0])}[/]{part}" for i, part in zip(ids, parts[1:]))
    console.print(filled)
    for i, p in zip(ids, chances):
        console.print("   " + "  ".join(f"{written(one)} {chance:.1%}" for one, chance in zip(i, p)), style="dim", highlight=False)
