"""ptmjax export: the model of a work folder as a folder that transformers opens."""
import argparse

import numpy as np

from ptmjax.cli import places, session
from ptmjax.convert import published

HELP = "write the model of a work folder as transformers reads it (config.json, model.safetensors, tokenizer.json)"
EXAMPLES = """
ptmjax export --workdir=runs/t5 --to=exported/t5
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_workdir(parser)
    session.add_step(parser)
    session.add_cache(parser)
    parser.add_argument("--to", required=True, type=places.here, metavar="FOLDER", help="a new folder")


def run(args: argparse.Namespace) -> int:
    held = session.saved(args.workdir)
    stage = held.stages[-1]
    build, vocabulary = held.build(stage), session.data(args, held).task.vocabulary
    step, params = session.parameters(args, held, session.on_one_device(build))
    published.export(build, {name: np.asarray(x) for name, x in params.items()}, args.to, vocabulary)
    print(f"{args.to}: step {step} of {args.workdir}")
    if any(args.to.rglob("tokenizer.json")):
        print("open its tokenizer with transformers' AutoTokenizer; T5Tokenizer and BertTokenizer take symbols to be where theirs are")
    return 0
