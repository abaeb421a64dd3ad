"""ptmjax detect: which tokens of a sentence a discriminator (ELECTRA) takes for replaced."""
import argparse

import jax
import numpy as np
from rich.console import Console
from rich.markup import escape

from ptmjax.cli import session
from ptmjax.data.text import check_given
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.objectives.rtd import Rtd
from ptmjax.types import Array, Batch, UserError

HELP = "mark the tokens of sentences that look replaced, with the discriminator of a work folder"
EXAMPLES = """
ptmjax detect --workdir=runs/electra "the united sea of america"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_workdir(parser)
    session.add_step(parser)
    session.add_cache(parser)
    parser.add_argument("text", nargs="+", help="sentences")
    parser.add_argument("--above", type=float, default=0.5, metavar="P", help="mark from this probability on (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.above <= 1:
        raise UserError(f"--above={args.above} is not a probability: give one in 0 .. 1")
    check_given(args.text)
    held = session.saved(args.workdir)
    stage = held.stages[-1]
    if not isinstance(stage.objective, Rtd):
        raise UserError(f"the run in {args.workdir} has no discriminator: train one with an ELECTRA file, such as electra_demo.gin")
    data, build = session.data(args, held), held.build(stage)
    step, params = session.parameters(args, held, session.on_one_device(build))
    batch = session.rows(args.text, data)

    @jax.jit
    def replaced(params: dict[str, Array], batch: Batch) -> Array:
        net = build.nets(params)["discriminator"]
        return jax.nn.sigmoid(net.head("rtd", net.encode(batch).state)[..., 0])

    console, chances = Console(soft_wrap=True), np.asarray(replaced(params, batch))
    session.check_finite([chances[batch["segments"] > 0]], step, args.workdir)
    console.print(f"step {step} of {args.workdir}; marked is what is taken for replaced with {args.above:.0%} or more", highlight=False,
                  markup=False)
    for row, chance, n in zip(batch["tokens"], chances, batch["segments"].sum(1)):
        tell(console, row[1 : n - 1], chance[1 : n - 1], args.above, data.task.vocabulary)  # without CLS and SEP
    return 0


def tell(console: Console, ids: np.ndarray, chances: np.ndarray, above: float, vocabulary: Vocabulary) -> None:
    """The text with its marks; where it has none, what came nearest."""
    words = [escape(vocabulary.plain(i)) for i in ids]
    spaces = [" " * int(start) for start in vocabulary.starts(ids)]
    pieces = [f"[bold red]{word}[/]({p:.0%})" if p >= above else word for word, p in zip(words, chances)]
    console.print("".join(space + piece for space, piece in zip(spaces, pieces)).strip(), highlight=False)
    if len(ids) and not (chances >= above).any():
        nearest = sorted(zip(chances, words), reverse=True)[:3]
        console.print(f"   nothing marked; highest: {'  '.join(f'{word} {p:.1%}' for p, word in nearest)}", style="dim", highlight=False)
