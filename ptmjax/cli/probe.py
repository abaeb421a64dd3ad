"""ptmjax probe: what a linear classifier reads off the frozen encoder of a work folder."""
import argparse
import json
from collections.abc import Iterator, Mapping

import jax
import numpy as np
from scipy import sparse

from ptmjax.cli import places, session
from ptmjax.cli.eval import write_rows
from ptmjax.cli.experiment import Data, Experiment
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.probe import features, linear
from ptmjax.tasks import labelled
from ptmjax.training.build import Build
from ptmjax.training.state import key_of
from ptmjax.types import Batch, at_least

NUMBERS = ("accuracy", "balanced_accuracy", "l2", "majority", "chance",
           *(f"{other}_{name}" for other in ("words", "random") for name in ("accuracy", "balanced_accuracy", "l2")))
HELP = "train a linear classifier on the frozen encoder of a work folder, for labels of short blocks of text"
EXAMPLES = """
ptmjax probe --workdir=runs/demo
ptmjax probe --workdir=runs/demo --labels=en_pd_parts_32 --layer=2
"""
BATCH = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_workdir(parser)
    session.add_step(parser)
    session.add_cache(parser)
    parser.add_argument("--labels", default="en_pd_parts_16", metavar="NAME",
                        help="labelled blocks (tasks/labelled.py; default: %(default)s: from which part of the shipped text 16 tokens are)")
    parser.add_argument("--layer", type=int, metavar="N", help="whose states, counted from 1 (default: the encoder's last)")
    parser.add_argument("--pool", choices=features.POOLS, default="mean", help="of a block's states: their mean, or that of [CLS]")
    parser.add_argument("--most", type=int, default=2000, metavar="N", help="blocks of a class that are trained on (default: %(default)s)")
    parser.add_argument("--rows", type=places.here, metavar="FILE", help="also write what is found of every block to this .npz")


def run(args: argparse.Namespace) -> int:
    held = session.saved(args.workdir)
    labelled, data, build, encode = prepared(args, held)
    like = session.on_one_device(build)
    step, params = session.parameters(args, held, like)
    rows = labelled.rows(data.task.vocabulary, args.most)
    made = Probe(rows, len(labelled.classes))
    read = lambda params: {split: features.over(encode, params, batches(args, data, build, r.tokens)) for split, r in rows.items()}
    encoder, found = made.scaled(states := read(params))
    session.check_finite(states.values(), step, args.workdir)
    words = made.read({split: bag(r.tokens, data.task.vocabulary) for split, r in rows.items()})[0]
    random, _ = made.scaled(read(jax.jit(build.init)(key_of(held.seed, "params"))))
    test = rows["test"].labels
    recalls = dict(zip(labelled.classes, linear.recalls(found, test, len(labelled.classes)).tolist()))
    about = {"step": step, "labels": args.labels, "layer": args.layer, "pool": args.pool, "blocks": len(test), "trained_on": made.trained}
    majority = {"majority": float(np.bincount(test).max() / len(test)), "chance": 1 / len(labelled.classes)}
    print(json.dumps(about | encoder | prefixed("words", words) | prefixed("random", random) | majority | {"recall": recalls}))
    if args.rows is not None:
        hit, share = (found == test).astype(np.float64), linear.weights_of_classes(test)
        write_rows(args.rows, {"document": rows["test"].documents, "accuracy/value": hit, "accuracy/weight": np.ones_like(hit),
                               "balanced_accuracy/value": hit * share, "balanced_accuracy/weight": share})
    return 0


def check(args: argparse.Namespace, held: Experiment) -> tuple[str, ...]:
    """The numbers that are printed; UserError where this cannot be asked of an experiment. Nothing of a run is read."""
    prepared(args, held)
    return NUMBERS


def rows(args: argparse.Namespace) -> bool:
    return True


def prepared(args: argparse.Namespace, held: Experiment):
    """The labelled set, the run's data (for its vocabulary), its networks, and what encodes a batch, traced."""
    at_least(1, **{"--most": args.most})
    found, data = labelled.read(args.labels), session.data(args, held)
    with session.fitting():
        build = held.build(held.stages[-1])
        encode = features.make_features(build, args.layer, args.pool)
        batch = next(batches(args, data, build, np.zeros((1, found.length), np.int32)))
        jax.eval_shape(encode, session.on_one_device(build), batch)
    return found, data, build, encode


class Probe:
    """A classifier on features of the training and validation blocks, asked of the test's."""

    def __init__(self, rows: Mapping, classes: int):
        self.classes, self.test = classes, rows["test"].labels
        self.labels = np.concatenate([rows["train"].labels, rows["validation"].labels])
        self.validation = np.arange(len(self.labels)) >= len(rows["train"].labels)
        self.trained = len(self.labels)

    def scaled(self, of: Mapping[str, np.ndarray]) -> tuple[dict[str, float], np.ndarray]:
        """read() of dense features, standardised by those that are trained on."""
        scale = linear.Scale.of(np.concatenate([of["train"], of["validation"]]))
        return self.read({split: scale(x) for split, x in of.items()})

    def read(self, of: Mapping) -> tuple[dict[str, float], np.ndarray]:
        """({accuracy, balanced_accuracy, l2}, the class found of each block of the test)."""
        stack = sparse.vstack if sparse.issparse(of["train"]) else np.concatenate
        l2, classifier = linear.choose(stack([of["train"], of["validation"]]), self.labels, self.validation, self.classes)
        found = classifier.classes(of["test"])
        balanced = float(np.nanmean(linear.recalls(found, self.test, self.classes)))
        return {"accuracy": float((found == self.test).mean()), "balanced_accuracy": balanced, "l2": l2}, found


def bag(tokens: np.ndarray, vocabulary: Vocabulary) -> sparse.csr_matrix:
    """How often each id occurs in a block, [N, V]: what is known without order and without an encoder."""
    n, length = tokens.shape
    at = np.repeat(np.arange(n), length), tokens.ravel()
    return sparse.csr_matrix((np.ones(tokens.size), at), shape=(n, vocabulary.size))


def prefixed(name: str, numbers: Mapping[str, float]) -> dict[str, float]:
    return {f"{name}_{key}": x for key, x in numbers.items()}


def batches(args: argparse.Namespace, data: Data, build: Build, tokens: np.ndarray) -> Iterator[Batch]:
    """BATCH blocks a time, written as the run's encoder reads text: CLS block SEP, or block EOS where a decoder follows (T5). The last is
    filled up with rows whose weights are 0, and padding."""
    vocabulary = data.task.vocabulary
    decoder = any("/decoder/" in path for path in build.keys)
    before = [] if decoder else session.symbols(vocabulary, "cls")
    after, [pad] = session.symbols(vocabulary, "eos" if decoder else "sep"), session.symbols(vocabulary, "pad")
    for begin in range(0, len(tokens), BATCH):
        part = tokens[begin : begin + BATCH]
        row = np.full((BATCH, len(before) + tokens.shape[1] + len(after)), pad, np.int32)
        text = slice(len(before), len(before) + tokens.shape[1])
        row[:, : text.start], row[: len(part), text], row[:, text.stop :] = before, part, after
        weights = np.zeros(row.shape, np.float32)
        weights[: len(part), text] = 1
        batch = {"tokens": row, "segments": np.ones_like(row), "weights": weights}
        yield batch | ({"types": np.zeros_like(row)} if "types" in data.features else {})
