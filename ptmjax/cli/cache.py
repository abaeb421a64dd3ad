"""ptmjax cache: prepares the data of an experiment, here or on the workers of a Beam pipeline."""
import argparse
import itertools

import jax
from rich.console import Console

from ptmjax.cli import config, own, places, session
from ptmjax.data import records, sources
from ptmjax.data.beam import Beam
from ptmjax.parallel.mesh import make_mesh
from ptmjax.training import loop
from ptmjax.types import UserError

HELP = "prepare the data of a run without training it, on this machine or by Apache Beam on many"
EXAMPLES = """
ptmjax cache --gin_file=bert_base_mlm.gin --data='my/*.txt'                      # what train would do first
ptmjax cache --gin_file=bert_base_mlm.gin --data='my/*.txt' --runner=DirectRunner --beam direct_num_workers=2    # docs/pods_data.md
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    config.add_arguments(parser)
    own.add_arguments(parser)
    session.add_cache(parser)
    group = parser.add_argument_group('on many machines, by Apache Beam (pip install "ptmjax[beam]"): the same files, to the byte')
    group.add_argument("--runner", metavar="NAME", help="DataflowRunner, FlinkRunner, SparkRunner, ... (DirectRunner: to try it here)")
    group.add_argument("--staging", type=places.anywhere, metavar="FOLDER",
                       help="where this machine and all workers read and write while it runs (default: the cache)")
    group.add_argument("--beam", action="append", default=[], metavar="OPTION=VALUE", help="an option of the runner; may be given often")


def run(args: argparse.Namespace) -> int:
    if args.runner is None and (args.beam or args.staging):
        raise UserError("--beam and --staging are about --runner, which is not given: name one, such as DirectRunner")
    how = Beam(args.runner, sources.placed(str(args.staging or args.cache)), args.beam) if args.runner else None
    if how:
        how.parsed()  # before anything that takes long
    experiment, console = session.experiment(args.gin_files, args.gin_bindings, own.bindings(args)), Console(soft_wrap=True)
    data = experiment.data(args.cache)
    with session.fitting():
        for d in data:
            d.check_vocabulary(experiment.build(d.stage))
            loop.plan_of(experiment.stage(d), make_mesh("data=1", jax.devices()[:1]), experiment.seed, experiment.steps)
    config.check_used()
    for d in data:
        for part, split in itertools.product(d.parts, records.SPLITS):
            console.print(str(records.build(part.task, split, str(args.cache), run=how).folder), highlight=False, markup=False)
        console.print(d.told(), highlight=False, markup=False)
    return 0
