"""Our side of the step benchmark: the step that training runs, of the networks and objective of the gin files."""
import time

import jax
import jax.numpy as jnp
import numpy as np

from ptmjax.cli import config, session
from ptmjax.parallel.mesh import make_mesh
from ptmjax.parallel.sharding import rows_sharding
from ptmjax.training.optimizer import AdamW
from ptmjax.training.schedules import linear
from ptmjax.training.state import Plan
from ptmjax.training.step import make_step
from tests.bench.systems import RATE, System
from tests.bench.timing import best


class Ours:
    """plan() as `ptmjax train` makes it but for the optimizer, which is AdamW for all systems (T5's file has Adafactor)."""

    ways = ("ours",)

    def __init__(self, system: System, threads: int):
        jax.config.update("jax_enable_compilation_cache", False)
        found = session.experiment([system.gin], system.bindings)
        build = found.build(found.stages[0])
        config.check_used()
        tx = AdamW(linear(RATE, 10, 10**6)).transform(build.leaves)
        plan = Plan(build, found.stages[0].objective, tx, make_mesh("", jax.devices()[:1]), system.rows, seed=0, micro=1)
        self.dot = jax.jit(jnp.dot)
        self.mesh, self.parameters = plan.mesh, build.count()
        self.batches = [jax.device_put(system.batch(seed), rows_sharding(plan.mesh)) for seed in range(4)]
        self.state, begin = plan.create(), time.perf_counter()
        with jax.set_mesh(plan.mesh):
            self.run = make_step(plan).lower(self.state, self.batches[0]).compile()
        self.compiled, self.done = time.perf_counter() - begin, 0

    def about(self) -> dict:
        found = self.run.memory_analysis()
        return {"parameters": self.parameters, "compile_s": self.compiled, "temporaries_gib": found.temp_size_in_bytes / 2**30,
                "library": f"jax {jax.__version__}", "threads": "all cores of the process's affinity (XLA counts them, and PJRT_NPROC)"}

    def step(self, way: str) -> float:
        """Seconds of one step; a loss that is no number is an error."""
        batch = self.batches[self.done % len(self.batches)]
        begin = time.perf_counter()
        with jax.set_mesh(self.mesh):
            self.state, metrics = jax.block_until_ready(self.run(self.state, batch))
        seconds, self.done = time.perf_counter() - begin, self.done + 1
        if not np.isfinite(metrics["loss"]) or metrics["skipped"]:
            raise SystemExit(f"ours: loss {metrics['loss']}, {metrics['skipped']} steps skipped")
        self.loss = float(metrics["loss"])
        return seconds

    def gemm(self, n: int) -> float:
        """GFLOP/s of a product of two n x n matrices in float32."""
        x, y = (jax.random.normal(jax.random.key(i), (n, n)) for i in range(2))
        self.dot(x, y)  # compiles, once a size
        return 2 * n**3 / best(lambda: jax.block_until_ready(self.dot(x, y))) / 1e9

