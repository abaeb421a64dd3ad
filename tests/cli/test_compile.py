"""`ptmjax compile`: what it tells, that it leaves nothing behind, and every fault as one line."""
import json
import re

import pytest

from ptmjax.cli import compile
from ptmjax.cli.main import main
from ptmjax.parallel.chips import CHIPS, GIB
from ptmjax.parallel.topology import topology
from ptmjax.training import hlo, memory
from ptmjax.training.flops import flops
from ptmjax.training.memory import Memory
from ptmjax.types import UserError
from tests.compiled import COMMON, SHRUNK, args, compiled, needs_libtpu, step

MESH = "data=2,fsdp=2,model=2"
TINY = ["compile", "--gin_file=bert_large.gin", "--stage=1", *(f"--gin.{name}={x}" for name, x in (COMMON | SHRUNK["bert_large"] | {"LAYERS": 4}).items())]


@pytest.fixture
def ptmjax(capsys, monkeypatch, tmp_path):
    """(options) -> (exit code, output, fault), in an empty folder in which no cache may be made either."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PTMJAX_CACHE", str(tmp_path / "cache"))

    def run(*options):
        code = main([*TINY, *options])
        assert list(tmp_path.iterdir()) == []
        return code, *capsys.readouterr()

    return run


def test_the_report_is_that_of_the_run_s_own_step(ptmjax):
    code, out, err = ptmjax("--topology=cpu:8", f"--mesh={MESH}", "--json")
    assert code == 0 and err == "" and out.count("\n") == 1
    report = json.loads(out)
    found, program = step("bert_large", "cpu:8", MESH, LAYERS=4), compiled("bert_large", "cpu:8", MESH, LAYERS=4)
    there = memory.of_compiled(found.plan, found.batch, program)
    assert report["bytes"] == there._asdict() | {"peak": there.peak} and report["bytes"]["padding"] is not None and report["mesh"] == {"data": 2, "fsdp": 2, "model": 2}
    assert {kind: (x["count"], x["bytes"]) for kind, x in report["collectives"].items()} == hlo.by_kind(hlo.collectives(program.as_text())[0])
    assert report["flops"] == flops(found.traced.jaxpr.jaxpr) and report["tokens"] == 8 * 64 and report["stage"] == 1 and report["attention"] == ["reference"]
    assert report["fits"] is None and "seconds_at_least" not in report  # a CPU's peaks are not known


def test_stage_microbatches_and_remat(ptmjax):
    """The last stage where none is named."""
    one = step("bert_large", "cpu:1", "data=1", micro=4, remat="full", LAYERS=4)
    assert one.plan.micro == 4 and one.task == "en_pd_nsp_64"
    few = step("bert_large", "cpu:1", "data=1", LAYERS=4)
    assert flops(one.traced.jaxpr.jaxpr) > 1.2 * flops(few.traced.jaxpr.jaxpr)  # products of the forward pass again
    last = args("bert_large", "cpu:1", "data=1")
    last.stage = None
    assert compile.traced(last, topology("cpu:1"), None, None).number == 2


@pytest.mark.parametrize("options, fault", [
    (["--topology=v7:2x2"], "--topology=v7:2x2 is not known"), (["--topology=cpu:2\n"], "--topology=cpu:2\\n is not known"),
    (["--topology=cpu:8", "--mesh=data=16"], "mesh 'data=16' takes 16 devices but there are 8"),
    (["--topology=cpu:8", "--mesh=dta=8"], "mesh 'dta=8': 'dta=8' is not one of data=N"),
    (["--topology=cpu:8", "--gin.BATCH=12"], "a batch of 12 rows does not divide by 8 row shards"),
    (["--topology=cpu:8", "--microbatches=3"], "times 3 micro-batches: make the batch a multiple of 24"),
    (["--topology=cpu:8", "--microbatches=0"], "--microbatches is 0; it must be at least 1"),
    (["--topology=cpu:8", f"--microbatches={10**30}"], f"--microbatches is {10**30}; it must be at most 8"),
    (["--topology=cpu:8", f"--mesh=data={'9' * 5000}"], "is not one of data=N"),
    (["--topology=cpu:8", "--mesh=model=8"], "axis 'heads' of 4 does not divide by mesh axis 'model' of 8"),
    (["--topology=cpu:8", "--mesh=fsdp=8", "--gin.D=36"], "does not divide by mesh axis 'fsdp' of 8"),
    (["--topology=cpu:8", "--remat=all"], "--remat is 'all'; it may be one of 'dots', 'full', 'none'"),
    (["--topology=cpu:8", "--stage=3"], "--stage=3: the run has 2, counted from 1"),
    (["--topology=cpu:8", "--stage=0"], "--stage=0"), (["--topology=cpu:8", "--gin.HIDDEN=2000000000", f"--gin.D={2**20}"], "would be ["),
    (["--topology=cpu:8", "--gin.LAYRES=2"], "nearest: 'LAYERS'"),
    (["--topology=cpu:8", "--gin.TASK_SHORT='none'"], "task 'none' is not registered"),
    (["--topology=cpu:8", "--wrkdir=x"], "unknown option '--wrkdir'"),
    ([], "required: --topology"),
])
def test_a_fault_is_one_line(ptmjax, options, fault):
    code, out, err = ptmjax(*options)
    assert code == 2 and out == "" and fault in err and err.startswith("ptmjax: error: ") and err.count("\n") == 1, err


@pytest.mark.parametrize("message, temporaries", [
    ("RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (35.5G) exceeds available HBM (15.75G).", 35.5 * GIB),
    ("RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 20.00G of 15.75G hbm. Exceeded", 17 * GIB),
    ("INTERNAL: something else", None),
])
def test_a_refusal_names_the_temporaries(message, temporaries):
    assert compile.exceeding(message, Memory(2 * GIB, 0, 0, GIB)) == temporaries


@needs_libtpu
def test_for_a_tpu_it_tells_whether_it_fits_and_the_least_time(ptmjax):
    code, out, err = ptmjax("--topology=v5e:2x2", "--mesh=data=2,model=2")
    assert code == 0 and err == ""
    told = dict(re.findall(r"│ (\S.*?) +│ (.*?) +│", out))
    assert told["chips"] == "4" and re.fullmatch(r"16.00 GiB: it fits, with 1[56].\d\d GiB to", told["memory of a device"])
    assert all(re.fullmatch(r"[\d.]+ ms( \(the bottleneck\))?", told[f"a step takes at least, by {what}"]) for what in ("compute", "memory", "network"))
    assert out.count("the bottleneck") == 1 and "all-reduce, a step" in told


def test_where_it_does_not_fit_it_tells_what_helps(ptmjax, monkeypatch):
    """More micro-batches, each with remat=full, until one fits; the mesh that holds less of the state."""
    monkeypatch.setattr(compile, "topology", lambda name: topology(name)._replace(chip=CHIPS["v5e"]))
    monkeypatch.setattr(compile, "compiled", lambda step: (
        memory.of_step(step.plan, step.batch)._replace(temporaries=40 * GIB // step.plan.micro, code=0), None if step.plan.micro < 2 else ""))
    monkeypatch.setattr(compile.hlo, "collectives", lambda program: ([], 0))
    code, out, err = ptmjax("--topology=cpu:8", "--mesh=data=8", "--gin.BATCH=64", "--json")
    report = json.loads(out)
    assert code == 0 and report["fits"] is False and -25 * GIB < report["spare"] < -24 * GIB and "collectives" not in report
    first, second, *attempts = report["helps"]
    assert (first["knob"], second["knob"]) == ("--mesh=data=4,fsdp=2", "--mesh=data=4,model=2")
    assert first["parameters"] + first["optimizer"] < 0.6 * (report["bytes"]["parameters"] + report["bytes"]["optimizer"])
    assert [(a["knob"], a["fits"]) for a in attempts] == [(f"--remat=full --microbatches={n}", n > 2) for n in (1, 2, 4)]
    assert err == "".join(f"ptmjax: it does not fit: trying {a['knob']}\n" for a in attempts)
    code, out, err = ptmjax("--topology=cpu:8", "--mesh=data=8", "--gin.BATCH=64")
    assert code == 0 and "16.00 GiB: it does not fit" in out and re.search("with --remat=full --microbatches=4 .*, it fits", re.sub(r"\s*│\n│\s*│ ", " ", out))


def test_a_mesh_that_the_pod_does_not_take_is_no_help(monkeypatch):
    found = step("bert_large", "cpu:8", "data=8")
    assert compile.spread(found.plan, topology("cpu:8"), "fsdp").mesh.shape["fsdp"] == 2

    def refused(text, devices):
        raise UserError(text)

    monkeypatch.setattr(compile, "make_mesh", refused)
    assert compile.spread(found.plan, topology("cpu:8"), "fsdp") is None


def test_where_xla_tells_no_bytes_there_is_no_verdict(ptmjax, monkeypatch):
    monkeypatch.setattr(compile, "topology", lambda name: topology(name)._replace(chip=CHIPS["v5e"]))
    monkeypatch.setattr(compile, "compiled", lambda step: (memory.of_step(step.plan, step.batch), ""))
    monkeypatch.setattr(compile.hlo, "collectives", lambda program: ([], 0))
    code, out, err = ptmjax("--topology=cpu:1", "--json")
    report = json.loads(out)
    assert code == 0 and report["fits"] is report["spare"] is report["bytes"]["peak"] is None and report["seconds_at_least"]["memory"] > 0
    code, out, err = ptmjax("--topology=cpu:1")
    assert code == 0 and re.search("all of it, a device +│ [?] ", out) and "memory of a" not in out


@pytest.mark.slow
@needs_libtpu
def test_a_batch_that_is_too_large_for_a_tpu(ptmjax):
    code, out, err = ptmjax("--topology=v5e:2x2", "--mesh=data=4", "--gin.BATCH=262144", "--json")
    report = json.loads(out)
    assert code == 0 and report["fits"] is False and report["spare"] < 0 and report["helps"][-1]["fits"] and report["helps"][-1]["peak"] < 16 * GIB
