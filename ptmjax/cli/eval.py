"""ptmjax eval: the held-out numbers of a work folder's newest checkpoint."""
import argparse
import dataclasses
import json

import jax

from ptmjax.cli import folder, readout, session
from ptmjax.cli.experiment import VALIDATION
from ptmjax.parallel.mesh import make_mesh
from ptmjax.parallel.sharding import rows_sharding
from ptmjax.training import loop
from ptmjax.training.step import make_eval
from ptmjax.types import INT32, at_least, at_most

HELP = "evaluate the newest checkpoint of a work folder on held-out text, every record once"
EXAMPLES = """
ptmjax eval --workdir=runs/demo                 # the newest checkpoint
ptmjax eval --workdir=runs/demo --step=best     # of a run with --gin.Experiment.best='"validation/loss"'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_workdir(parser)
    session.add_step(parser)
    session.add_cache(parser)
    session.add_processes(parser)
    parser.add_argument("--mesh", default="", help='for example "data=4,model=2" (default: all devices on data)')
    parser.add_argument("--batch", type=int, help="rows at a time (default: as trained); the numbers do not depend on it")


def run(args: argparse.Namespace) -> int:
    if args.batch is not None:
        at_least(1, batch=args.batch)
        at_most(INT32, batch=args.batch)
    session.join(args)
    held, mesh = session.saved(args.workdir), make_mesh(args.mesh)
    data = session.data(args, held)
    rows = args.batch or data.stage.batch
    data.check_rows(rows, "--batch")
    folder.check_data(args.workdir, len(held.stages) - 1, folder.text(data))
    plan = loop.plan_of(held.stage(data), mesh, held.seed, held.steps)
    plan = dataclasses.replace(plan, rows=rows, micro=1)
    step, params = session.parameters(args, held, plan.abstract.params)
    evaluation, found = make_eval(plan.build, plan.objective, plan.seed), {}
    with jax.set_mesh(mesh):
        for name, heldout in data.heldouts.items():
            found[name] = loop.evaluate(plan, evaluation, params, step, heldout(rows_sharding(mesh), rows))
    data.prepare()
    if jax.process_index() == 0:
        print(json.dumps({"step": step} | found.pop(VALIDATION) | readout.baselines(data) | found))
    return 0
