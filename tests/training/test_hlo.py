"""Collectives of programs written by hand, and of BERT's step compiled as a loop over layers and without one."""
import pytest

from ptmjax.training import hlo, memory
from ptmjax.training.hlo import Collective
from tests.compiled import SHRUNK, compiled, full_vocabulary, needs_libtpu, step

HEAD = "HloModule jit_step, is_scheduled=true, num_partitions=8\n\n"
ADD = "%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  ROOT %s = f32[] add(%a, %b)\n}\n\n"


def read(*body: str, before: str = "") -> list[Collective]:
    lines = "".join(f"  {line}\n" for line in body)
    found, unknown = hlo.collectives(f"{HEAD}{ADD}{before}ENTRY %main (p: f32[4,8]) -> f32[4,8] {{\n{lines}}}\n")
    assert unknown == 0
    return found


@pytest.mark.parametrize("line, wanted, received", [
    ("%r = f32[4,8]{1,0:T(8,128)S(1)} all-reduce(%p), replica_groups=[4,2]<=[8], to_apply=%add", ("all-reduce", 128, 2), 128),
    ("ROOT %r = (f32[4,8]{1,0}, /*index=1*/bf16[2]{0:T(256)}) all-reduce(%p, %q), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add",
     ("all-reduce", 132, 4), 198),
    ("%r = f32[8,8]{1,0} all-gather(%p), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}", ("all-gather", 256, 4), 192),
    ("%r = f32[2,8]{1,0} reduce-scatter(%p), replica_groups=mesh['a'=4,'b'=2] {'b'}, dimensions={0}, to_apply=%add", ("reduce-scatter", 64, 2), 64),
    ("%r = s32[4]{0} all-to-all(%p), replica_groups=mesh['a'=2,'b'=2,'c'=2], device_ids=([2,4]T(1,0)) {'a','c'}", ("all-to-all", 16, 4), 12),
    ("%r = pred[4]{0} all-gather(%p), replica_groups=mesh['a'=8] {'a':(2)4}, dimensions={0}", ("all-gather", 4, 4), 3),
    ("%r = pred[16]{0} collective-permute(%p), source_target_pairs={{0,1},{1,0}}", ("collective-permute", 16, 8), 16),
    ("%r = f32[] all-reduce(%p), to_apply=%add", ("all-reduce", 4, 8), 7),
    ("%r = f32[] all-reduce(%p), replica_groups={{0},{1}}, to_apply=%add", ("all-reduce", 4, 1), 0),
    ("%s = (f32[4]{0}, f32[8]{0:T(8)}) all-gather-start(%p), replica_groups=[4,2]<=[8], dimensions={0}", ("all-gather", 32, 2), 16),
    ("%s = ((f32[4]{0}, s8[4]{0}), (f32[8]{0}, s8[8]{0})) all-gather-start(%p, %q), replica_groups=[4,2]<=[8]", ("all-gather", 40, 2), 20),
    ("%s = f32[8]{0} all-reduce-start(%p), replica_groups=[4,2]<=[8], to_apply=%add", ("all-reduce", 32, 2), 32),
    ("%s = (f32[2]{0}, f32[2]{0}, u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1}}", ("collective-permute", 8, 8), 8),
])
def test_a_collective_of_each_kind(line, wanted, received):
    [found] = read(line)
    assert found == (*wanted, 1) and found.received == received


def test_start_and_done_are_one():
    assert len(read("%s = (f32[4]{0}, f32[8]{0}) all-gather-start(%p), replica_groups=[4,2]<=[8]", "%d = f32[8]{0} all-gather-done(%s)")) == 1
    inner = "%wrapped (p: f32[4]) -> f32[8] {\n  ROOT %r = f32[8]{0} all-gather(%p), replica_groups=[4,2]<=[8]\n}\n\n"
    assert len(read("%s = ((f32[4]{0}), f32[8]{0}, u32[]) async-start(%p), calls=%wrapped",
                    "%d = f32[8]{0} async-done(%s), calls=%wrapped", before=inner)) == 1


def test_a_chain_of_fusions_is_one():
    """libtpu's way to run one beside the products of several fusions."""
    line = "  ROOT %r = f32[8]{{0}} all-gather(%p), channel_id=7, replica_groups=[4,2]<=[8], frontend_attributes={{chain_id=\"{}\"}}\n"
    before = "".join(f"%fused.{i} (p: f32[4]) -> f32[8] {{\n{line.format(0)}}}\n\n" for i in range(3))
    assert len(read(*(f"%f{i} = f32[8]{{0}} fusion(%p), kind=kCustom, calls=%fused.{i}" for i in range(3)), before=before)) == 1


def test_an_all_reduce_of_which_each_keeps_its_part():
    before = "%all-reduce-scatter.1 (p: f32[8]) -> f32[2] {\n  %r = f32[8]{0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add\n}\n\n"
    [found] = read("%f = f32[2]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1", before=before)
    assert found == ("reduce-scatter", 8, 4, 1) and found.received == 24


WHILE = """%cond (c: (s32[])) -> pred[] {
  %n = s32[]{:T(128)} constant(24)
  %c = (s32[]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %n), direction=LT
}

%body (d: (s32[])) -> (s32[]) {
  %d = (s32[]) parameter(0)
  %one = s32[]{:T(128)} constant(1)
  %j = s32[] get-tuple-element(%d), index=0
  %held = s32[]{:T(128)S(6)} copy(%j), backend_config={"flag_configs":[]}
  %r = f32[2]{0} all-reduce(%d), replica_groups=[4,2]<=[8], to_apply=%add
  %next = s32[] add(%held, %one)
  ROOT %t = (s32[]) tuple(%next)
}

%outer (c: (s32[])) -> (s32[]) {
  %zero = s32[]{:T(128)} constant(0)
  %begin = s32[]{:T(128)} copy(%zero)
  %u = (s32[]) tuple(%begin)
  ROOT %w = (s32[]) while(%u), condition=%cond, body=%body
}

"""


def test_loops_within_loops():
    """A length that XLA tells, and one that is read off the loop."""
    line = '%o = (s32[]) while(%p), condition=%any, body=%outer, backend_config={"known_trip_count":{"n":"3"}}'
    assert read(line, before=WHILE) == [("all-reduce", 8, 2, 72)]


@pytest.mark.parametrize("was, now, times", [
    ("", "", 24), ("constant(0)", "constant(20)", 4), ("constant(0)", "constant(-2)", 26), ("constant(0)", "constant(30)", 0),
    ("constant(1)", "constant(5)", 5), ("constant(24)", "parameter(1)", None), ("constant(0)", "parameter(1)", None), ("constant(1)", "parameter(1)", None),
    ("constant(1)", "constant(-1)", None), ("tuple(%begin)", "custom-call(%begin)", None), ("add(%held, %one)", "multiply(%held, %one)", None),
    ("add(%held, %one)", "add(%one, %held)", None), ("direction=LT", "direction=GT", None), ("compare(%i, %n)", "compare(%n, %i)", None),
])
def test_a_loop_s_length_is_that_of_its_counter(was, now, times):
    """Where it begins, what it adds, and what it is held below; a loop that counts otherwise is told, and taken once."""
    text = WHILE.replace(was, now)
    found, unknown = hlo.collectives(f"{HEAD}{ADD}{text}ENTRY %main (p: f32[4]) -> f32[4] {{\n  %c = f32[] call(%p), to_apply=%outer\n}}\n")
    assert found == [("all-reduce", 8, 2, 1 if times is None else times)] and unknown == (times is None)


def test_by_kind():
    assert hlo.by_kind([Collective("all-reduce", 8, 2, 3), Collective("all-reduce", 4, 2, 1), Collective("all-gather", 8, 2, 1)]) == {
        "all-gather": (1, 4), "all-reduce": (4, 28)}


# ------------------------------------------------------------------ steps
MESH = "data=2,fsdp=2,model=2"
rest = lambda *x: pytest.param(*x, marks=pytest.mark.slow)


@pytest.mark.parametrize("name, share", [("bert_large", 1), rest("t5_large", 0.8), rest("electra_large", 1)])
def test_layers_in_a_loop_send_what_layers_one_by_one_do(name, share):
    """The bytes of gradients and activations are equal to the last one; XLA joins some all-reduces of neighbouring layers, so there are
    fewer of them. The kernels of the layers are gathered twice in loops, in the forward and in the backward pass, and once where
    XLA sees both (of T5's MLPs, half the kernels twice all the same: the other .2)."""
    loop, plain = (hlo.by_kind(hlo.collectives(compiled(name, "cpu:8", MESH, LAYERS=4, **more).as_text())[0])
                   for more in ({}, {"Stack.loop": True}))
    assert loop.keys() == plain.keys()
    assert {kind: size for kind, (_, size) in loop.items() if kind != "all-gather"} == {
        kind: size for kind, (_, size) in plain.items() if kind != "all-gather"}
    kernels = {n: x for n, x in step(name, "cpu:8", MESH, LAYERS=4).plan.abstract.params.items() if "/stack/" in n and n.endswith("kernel")}
    assert loop["all-gather"][1] - plain["all-gather"][1] == share * memory.held(kernels) > 0


def test_with_the_vocabulary_over_model_no_device_has_all_scores():
    """In forward or backward pass; on a mesh without a model axis they are found."""
    assert not full_vocabulary(compiled("bert_large", "cpu:8", MESH, LAYERS=4).as_text(), 1152)
    assert full_vocabulary(compiled("bert_large", "cpu:1", "data=1", LAYERS=4).as_text(), 1152)


@needs_libtpu
@pytest.mark.parametrize("name, place, mesh", [
    ("t5_large", "v5e:4x4", "data=2,fsdp=2,model=4"), ("electra_large", "v5e:4x4", "data=2,fsdp=2,model=4"),
    rest("bert_large", "v5e:4x4", "data=2,fsdp=2,model=4"), *(rest(name, "v5e:2x2", "data=2,model=2") for name in SHRUNK),
])
def test_for_a_tpu(name, place, mesh):
    """Every loop's length is read, gradients are summed by reduce-scatter where parameters are sharded over fsdp, and no chip holds all
    scores; layouts, which pad the last axis of 32 to 128, make more than half as much again of what a chip holds between steps, and all of
    it is counted, once."""
    found, program = step(name, place, mesh), compiled(name, place, mesh)
    sent, unknown = hlo.collectives(program.as_text())
    kinds = hlo.by_kind(sent)
    assert unknown == 0 and ("reduce-scatter" in kinds) == ("all-gather" in kinds and "fsdp" in mesh) == ("fsdp" in mesh)
    assert max(c.times for c in sent) == 2 and not full_vocabulary(program.as_text(), 1152)
    there = memory.of_compiled(found.plan, found.batch, program)
    stats = program.memory_analysis()
    assert there.state + there.batch + there.padding == stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    assert there.padding > there.state / 2 and there.peak == there.state + there.batch + there.padding + there.temporaries + there.code > there.code > 0


@pytest.mark.slow
@needs_libtpu
def test_places_that_are_shared_out_are_scattered_and_gathered():
    """In place of being summed on all devices: no more bytes, and none sent from each to each."""
    sent = lambda on: hlo.collectives(compiled("bert_large", "v5e:2x2", "data=2,model=2", LAYERS=4, **{"Stack.sequence": on}).as_text())[0]
    plain, shared = hlo.by_kind(sent(False)), hlo.by_kind(sent(True))
    assert plain.keys() == {"all-reduce"} and shared.keys() == {"all-reduce", "all-gather", "reduce-scatter"}
    assert sum(size for _, size in shared.values()) <= plain["all-reduce"][1] and shared["all-reduce"][1] < plain["all-reduce"][1] / 2


@needs_libtpu
def test_on_data_alone_a_tpu_sends_every_gradient_once():
    """And a few scalars: the mean of the loss and of what is reported. That of the table is one sum of its two uses."""
    found, program = step("bert_large", "v5e:2x2", "data=4", LENGTH=64), compiled("bert_large", "v5e:2x2", "data=4", LENGTH=64)
    kinds = hlo.by_kind(hlo.collectives(program.as_text())[0])
    assert kinds.keys() == {"all-reduce"} and 0 < kinds["all-reduce"][1] - 2 * 3 / 4 * memory.held(found.plan.abstract.params) < 200
