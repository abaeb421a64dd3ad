"""ptmjax fill: what a model puts in the place of [MASK]: a token (masked language models) or a span (span corruption)."""
import argparse
import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.markup import escape

from ptmjax.cli import session
from ptmjax.data.text import check_given
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.decode.spans import Span, greedy_spans
from ptmjax.models.network import Network
from ptmjax.objectives.base import Objective
from ptmjax.objectives.rtd import Rtd
from ptmjax.objectives.seq2seq import Seq2Seq
from ptmjax.objectives.token import Mlm
from ptmjax.training.build import Build
from ptmjax.types import Array, Batch, UserError, at_least, at_most, slots

HELP = "fill [MASK] in sentences with the model of a work folder"
EXAMPLES = """
ptmjax fill --workdir=runs/demo "the united [MASK] of america"
ptmjax fill --workdir=runs/t5 "the united [MASK] of america and the [MASK]"     # T5: a span in every blank
"""
MARK = "[MASK]"
LONGEST = 512  # tokens of a span: each is a pass through the decoder, over all before it
Params = dict[str, Array]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_workdir(parser)
    session.add_step(parser)
    session.add_cache(parser)
    parser.add_argument("text", nargs="+", help=f"sentences with one or more {MARK}")
    parser.add_argument("--top", type=int, default=5, metavar="K", help="how many candidates to show (default: %(default)s)")
    parser.add_argument("--language", type=int, default=0, metavar="N", help="that of the sentences, where the model has embeddings of "
                        "languages (default: %(default)s)")
    parser.add_argument("--longest", type=int, default=8, metavar="N", help="most tokens of a span (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    at_least(1, top=args.top, longest=args.longest)
    at_most(LONGEST, longest=args.longest)
    check_given(args.text)
    for text in args.text:
        if MARK not in text:
            raise UserError(f"there is no {MARK} in {text!r}: put one, so written, where a word is to be found, and quotes around the text")
    held = session.saved(args.workdir)
    stage, objective = held.stages[-1], held.stages[-1].objective
    data, build = session.data(args, held), held.build(stage)
    vocabulary, masked = data.task.vocabulary, masked_model(objective)
    check_language(args.language, build)
    step, params = session.parameters(args, held, session.on_one_device(build))
    console = Console(soft_wrap=True)
    console.print(f"step {step} of {args.workdir}", highlight=False, markup=False)
    if masked is not None:
        found = words(build, params, *masked, session.rows(args.text, data, MARK, args.language), args.top, vocabulary.size)
        show = show_words
    elif isinstance(objective, Seq2Seq):
        found, show = spans(build, params, objective, args.text, vocabulary, args.longest), show_spans
    else:
        raise UserError(f"the run in {args.workdir} has neither a masked language model nor span corruption to fill with")
    session.check_finite(chances(found), step, args.workdir)
    for text, one in zip(args.text, found):
        show(console, text, one, vocabulary)
    return 0


def check_language(language: int, build: Build) -> None:
    """UserError where the model knows no language of this number."""
    known = min((leaf.sizes[0] for name, leaf in build.leaves.items() if name.endswith("/languages/table")), default=0)
    at_least(0, **{"--language": language})
    if language >= max(known, 1):
        raise UserError(f"--language={language}: the model has " + (f"{known} languages, numbered from 0: name one of them" if known else
                        "no embeddings of languages: leave it out"))


def masked_model(objective: Objective) -> tuple[str, str] | None:
    """(network, head) of a masked language model: BERT's, or ELECTRA's generator."""
    if isinstance(objective, Rtd):
        return "generator", "mlm"
    return next(((objective.net, term.head) for term in getattr(objective, "terms", ()) if isinstance(term, Mlm)), None)


def chances(found: Sequence[tuple[np.ndarray, np.ndarray]] | Sequence[list[Span]]) -> Iterator[np.ndarray]:
    """What the model gave to each text, as probabilities or their logarithms."""
    for one in found:
        yield one[1] if isinstance(one, tuple) else np.array([span.log_p for span in one])


# ------------------------------------------------------------------ a token each
def words(build: Build, params: Params, net: str, head: str, batch: Batch, top: int, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """For every row, (ids, probabilities) at its masks, each [masks, top]; of the `size` ids of the vocabulary, of which the model's
    tables may have more."""
    counts = batch["weights"].sum(1).astype(int)
    answer = jax.jit(lambda params, batch: best(build.nets(params)[net], head, batch, int(counts.max()), min(top, size), size))
    ids, chances = map(np.asarray, answer(params, batch))
    return [(i[:n], p[:n]) for i, p, n in zip(ids, chances, counts)]


def best(net: Network, head: str, batch: Batch, masks: int, top: int, size: int) -> tuple[Array, Array]:
    """(ids, probabilities) at the first `masks` masks of every row, each [B, masks, top]."""
    scores = net.head(head, net.encode(batch).state, slots(batch["weights"], masks))[..., :size]
    chances, ids = jax.lax.top_k(jax.nn.softmax(scores), top)
    return ids, chances


def show_words(console: Console, text: str, found: tuple[np.ndarray, np.ndarray], vocabulary: Vocabulary) -> None:
    """The text with the best candidates in it, and all of them with their probabilities."""
    goes_on = [~vocabulary.starts(ids[:, None])[:, 0] for ids in found[0]]
    if vocabulary.spaces and not text.split(MARK)[0].strip():
        goes_on[0] = np.zeros_like(goes_on[0])  # a text's first word has no space before it
    candidates = lambda *blank: "  ".join(f"{shown(vocabulary.plain(i), on)} {chance:.1%}" for i, on, chance in zip(*blank))
    lines = list(map(candidates, found[0], goes_on, found[1]))
    tell(console, text, [(vocabulary.plain(ids[0]), on[0]) for ids, on in zip(found[0], goes_on)], lines)


def shown(piece: str, goes_on: bool) -> str:
    """A candidate; ## is before letters that go on with the word before, as WordPiece writes them."""
    return f"##{piece}" if goes_on and piece[:1].isalnum() else piece


# ------------------------------------------------------------------ a span each
def spans(build: Build, params: Params, objective: Seq2Seq, texts: Sequence[str], vocabulary: Vocabulary, longest: int) -> list[list[Span]]:
    """For every text, the spans in its blanks."""
    blanks, size = [text.count(MARK) for text in texts], vocabulary.size
    if max(blanks) > vocabulary.sentinels:
        raise UserError(f"a text has {max(blanks)} {MARK}, the vocabulary has {vocabulary.sentinels} sentinels: put fewer")
    sentinels = range(size - 1, size - 1 - vocabulary.sentinels, -1)
    batch = inputs(texts, vocabulary, sentinels)

    @jax.jit
    def after(params: Params, batch: Batch, tokens: Array, t: Array) -> tuple[Array, Array]:
        net = build.nets(params)[objective.net]
        batch = batch | {"decoder_tokens": tokens, "decoder_segments": jnp.ones_like(tokens)}
        state = net.decode(batch, net.encode(batch).state).state
        scores = jax.nn.log_softmax(net.head(objective.head, jax.lax.dynamic_slice_in_dim(state, t, 1, 1))[:, 0])
        return scores.argmax(-1), scores.max(-1)

    choose = lambda tokens, t: tuple(map(np.asarray, after(params, batch, tokens, jnp.int32(t))))
    return greedy_spans(choose, blanks, sentinels, frozenset({vocabulary.eos, *sentinels}), vocabulary.pad, longest)


def inputs(texts: Sequence[str], vocabulary: Vocabulary, sentinels: Sequence[int]) -> Batch:
    """The encoder's side: pieces with a sentinel in every blank, EOS behind, padded to the longest."""
    lists, (eos, pad) = [], session.symbols(vocabulary, "eos", "pad")
    for text in texts:
        first, *others = (vocabulary.encode(part).tolist() for part in text.split(MARK))
        lists.append([*first, *(i for sentinel, part in zip(sentinels, others) for i in (sentinel, *part)), eos])
    tokens, segments = session.padded(lists, pad)
    return {"tokens": tokens, "segments": segments}


def show_spans(console: Console, text: str, found: list[Span], vocabulary: Vocabulary) -> None:
    """The text with a span in every blank, and each with its probability."""
    written = [vocabulary.decode(span.ids) or "(nothing)" for span in found]
    tell(console, text, [(one, False) for one in written], [f"{one} {math.exp(span.log_p):.1%}" for one, span in zip(written, found)])


def tell(console: Console, text: str, filled: Sequence[tuple[str, bool]], lines: Sequence[str]) -> None:
    """The text with what was found in its blanks, and whether that goes on with the word before; below it a line for every blank."""
    whole, *others = (escape(part) for part in text.split(MARK))
    for (word, goes_on), part in zip(filled, others):
        whole = f"{whole.rstrip() if goes_on else whole}[bold green]{escape(word)}[/]{part}"
    console.print(whole)
    for line in lines:
        console.print(f"   {escape(line)}", style="dim", highlight=False)
