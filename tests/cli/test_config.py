"""Configuration: every misspelling is one line with a remedy, and what is saved gives the same configuration again."""
import dataclasses
import importlib
import re
import sys
import textwrap

import pytest

from ptmjax.cli import config
from ptmjax.types import UserError

NETWORK = '''
    """Stand-ins for parts of a system."""
    import dataclasses
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal

    @dataclasses.dataclass
    class Block:
        width: int
        rate: float = 0.1
        act: str = "gelu"
        bias: bool = True

    @dataclasses.dataclass
    class Table:
        rows: int = 10
        kind: Literal["sum", "cat"] = "sum"

    class Stack:
        def __init__(self, groups: Sequence[tuple[Callable[..., Block], int]], remat: bool = False, *, key: int):
            self.blocks, self.remat, self.key = [make() for make, n in groups for _ in range(n)], remat, key

    class Network:
        def __init__(self, parts: Mapping[str, Table], stack: Callable[..., Stack] | None = None, clip: float | None = None):
            self.parts, self.clip, self.stack = parts, clip, stack and stack(key=7)

    class Spare(Table):
        pass

    NUMBER = 3
'''
LOOP = '''
    from parts.network import Network

    def train(net: Network, steps: int, name: str = "run", ratios: dict[str, float] = {}, tags: tuple[str, ...] = ()):
        return net, steps, name, ratios, tags

    def evaluate(batch: int = 4):
        return batch
'''
OTHER = '''
    class Table:
        def __init__(self, rows: int = 1):
            self.rows = rows

    class Spare(Table):
        pass
'''
FAMILY = """\
from __gin__ import dynamic_registration
from parts import network
WIDTH = 16
network.Block.width = %WIDTH
network.Table.rows = 100
network.Network:
    parts = {"types": @small/network.Table(), "tokens": @network.Table()}
    stack = @network.Stack
network.Stack.groups = [(@network.Block, 2)]
small/network.Table.rows = 3
"""
RUN = """\
from __gin__ import dynamic_registration
import parts.loop
include 'family.gin'
STEPS = 10
parts.loop.train:
    net = @parts.network.Network()
    steps = %STEPS
"""


@pytest.fixture(scope="module", autouse=True)
def parts(tmp_path_factory):
    """gin registers a class once a process, so the stand-ins are one package for all tests here."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "parts").mkdir()
    for name, source in {"__init__": "", "network": NETWORK, "loop": LOOP, "other": OTHER, "broken": "import no_such_package"}.items():
        (folder / "parts" / f"{name}.py").write_text(textwrap.dedent(source))
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "shipped").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "shipped" / "family.gin").write_text(FAMILY)
    (tmp_path / "here" / "run.gin").write_text(RUN)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("ptmjax.cli.reading.gin_folder", lambda: tmp_path / "shipped")
    return tmp_path / "here"


def train():
    return config.configured(importlib.import_module("parts.loop").train)()


def fault(*bindings, files=("run.gin",), line=None):
    """The UserError of loading; `line` is put at the end of run.gin."""
    if line is not None:
        with open("run.gin", "a") as f:
            f.write(f"{line}\n")
    with pytest.raises(UserError) as caught:
        config.load(files, bindings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------ what works
def test_files_includes_macros_scopes_and_references(folder):
    config.load(["run.gin"])
    net, steps, *rest = train()
    assert steps == 10 and rest == ["run", {}, ()]
    assert [t.rows for t in net.parts.values()] == [3, 100] and list(net.parts) == ["types", "tokens"]
    assert [dataclasses.astuple(b) for b in net.stack.blocks] == [(16, 0.1, "gelu", True)] * 2 and net.stack.key == 7
    config.check_used()


def test_brackets_without_end(folder):
    deep = f"{'[' * 3000}{']' * 3000}"
    assert fault(f"STEPS={deep}") == "--gin.STEPS: too many brackets inside each other: write it flatter"
    assert re.fullmatch(r"\S*run.gin:\d+: too many brackets inside each other: write it flatter", fault(line=f"WIDTH = {deep}"))


def test_file_is_found_with_or_without_suffix_here_first_then_shipped(folder):
    (folder.parent / "shipped" / "run.gin").write_text("broken =")
    config.load(["run"])
    assert train()[1] == 10
    (folder / "run.gin").unlink()
    assert "run.gin:1" in fault(files=["run"]) and "shipped" in fault(files=["run"])


@pytest.mark.parametrize(
    "binding, read",
    [
        ("STEPS=20", lambda out: out[1] == 20),
        ("train.steps=20", lambda out: out[1] == 20),
        ("loop.train.steps=%WIDTH", lambda out: out[1] == 16),
        ("parts.loop.train.name=a/b-1.txt", lambda out: out[2] == "a/b-1.txt"),
        ("train.name='10'", lambda out: out[2] == "10"),
        ("train.ratios={'a': 1, 'b': 2.5}", lambda out: out[3] == {"a": 1, "b": 2.5}),
        ("train.tags=['x', 'y']", lambda out: out[4] == ["x", "y"]),
        ("network.Block.rate=1e-4", lambda out: out[0].stack.blocks[0].rate == 1e-4),
        ("Block.rate=0", lambda out: out[0].stack.blocks[0].rate == 0),
        ("small/network.Table.rows=5", lambda out: out[0].parts["types"].rows == 5 and out[0].parts["tokens"].rows == 100),
        ("Network.stack=None", lambda out: out[0].stack is None),
        ("Network.clip=1", lambda out: out[0].clip == 1),
        ("Stack.groups=[(@Block, 1), (@network.Block, 2)]", lambda out: len(out[0].stack.blocks) == 3),
    ],
)
def test_command_line_binds_macros_and_any_unique_ending_of_a_path(folder, binding, read):
    config.load(["run.gin"], [binding])
    assert read(train())


def test_load_replaces_the_configuration(folder):
    config.load(["run.gin"], ["STEPS=20"])
    config.load(["run.gin"])
    assert train()[1] == 10


# ------------------------------------------------------------------ what is misspelt
@pytest.mark.parametrize(
    "line, words",
    [
        ("include 'famly.gin'", ["run.gin:8", "famly.gin", "'family.gin'"]),
        ("import parts.netwrk", ["run.gin:8", "parts.netwrk", "'network'"]),
        ("from parts import netwrk", ["run.gin:8", "'network'"]),
        ("import prts.network", ["run.gin:8", "'prts'", "'parts'"]),
        ("import parts.broken", ["run.gin:8", "no_such_package", "not installed"]),
        ("from __gin__ import dynamic_registratoin", ["run.gin:8", "dynamic_registration"]),
        ("parts.network.Blok.rate = 0.0", ["run.gin:8", "'Blok'", "'Block'"]),
        ("prts.network.Block.rate = 0.0", ["run.gin:8", "'prts' is not imported", "'parts'"]),
        ("network.Block.rate = 0.0", ["run.gin:8", "'network' is not imported in this file"]),
        ("parts.network.Block.rat = 0.0", ["run.gin:8", "'rat'", "'rate'"]),
        ("parts.network.NUMBER.x = 0.0", ["run.gin:8", "NUMBER", "int"]),
        ("parts.network.Network.stack = @parts.network.Stak", ["run.gin:8", "'Stak'", "'Stack'"]),
        ("parts.network.Network.clip = %CLIP", ["run.gin:8", "%CLIP is not defined"]),
        ("parts.loop.train.steps = %STEP", ["run.gin:8", "%STEP", "'STEPS'"]),
        ("STPES = 20", ["run.gin:8", "STPES is never used", "'STEPS'"]),
        ("smal/parts.network.Table.rows = 4", ["run.gin:8", "'smal'", "'small'"]),
        ("parts.network.Blok:\n    rate = 0.0", ["run.gin:8", "'Blok'", "'Block'"]),
        ("STEPS = %STEPS", ["run.gin", "stands for itself"]),
        ("STEPS = ten", ["run.gin:8", "ten", "quotes"]),
        ("STEPS = (1,", ["run.gin:"]),
        ("STEPS", ["run.gin:8"]),
    ],
)
def test_a_misspelling_in_a_file_names_place_and_nearest(folder, line, words):
    message = fault(line=line)
    assert all(w in message for w in words), message


@pytest.mark.parametrize(
    "binding, words",
    [
        ("STPES=20", ["--gin.STPES", "never used", "'STEPS'"]),
        ("train.step=20", ["--gin.train.step", "'step'", "'steps'"]),
        ("trian.steps=20", ["--gin.trian.steps", "'train'"]),
        ("Network.stack=@Stak", ["--gin.Network.stack", "'Stack'"]),
        ("Network.clip=%CLIP", ["--gin.Network.clip", "%CLIP is not defined"]),
        ("smal/Block.rate=0.5", ["--gin.smal/Block.rate", "'small'"]),
        ("train.tags=['x'", ["--gin.train.tags", "cannot read"]),
        ("train.steps", ["--gin.train.steps", "=VALUE"]),
        ("train.tags=['x']\n['y']", ["--gin.train.tags", "cannot read the value", r"\n"]),
        ("=3", ["--gin.", "NAME=VALUE"]),
    ],
)
def test_a_misspelling_on_the_command_line(folder, binding, words):
    message = fault(binding)
    assert all(w in message for w in words), message


def test_a_byte_order_mark_is_passed_over(folder):
    (folder / "run.gin").write_text("\ufeff" + RUN)
    config.load(["run.gin"])
    assert train()[1] == 10


def test_a_misspelt_file(folder):
    message = fault(files=["rum.gin"])
    assert "'rum.gin'" in message and "'run.gin'" in message
    (folder / "binary.gin").write_bytes(b"\xff\xfe\x00\x01")
    assert "not text" in fault(files=["binary.gin"])


def test_a_module_of_ones_own_that_fails_is_one_line(folder):
    (folder / "my_broken_tasks.py").write_text("register(Task())\n")
    message = fault(line="import my_broken_tasks")
    assert message.startswith("run.gin:") and "fails: NameError: name 'register' is not defined" in message


def test_an_ambiguous_name_lists_all(folder):
    message = fault("Spare.rows=4", line="import parts.other")
    assert "parts.network.Spare" in message and "parts.other.Spare" in message


def test_of_two_names_the_one_that_the_files_bind_is_meant(folder):
    (folder / "two.gin").write_text(RUN + "import parts.other\n")
    config.load(["two.gin"], ["Table.rows=4"])
    assert config._gin.query_parameter("parts.network.Table.rows") == 4
    config.load(["two.gin"], ["other.Table.rows=4"])
    assert config._gin.query_parameter("parts.other.Table.rows") == 4


def test_a_file_that_includes_itself(folder):
    assert "includes itself" in fault(line="include 'run.gin'")


def test_a_file_without_dynamic_registration_is_told_how(folder):
    (folder / "old.gin").write_text("Block.rate = 0.5\n")
    assert "begin the file with" in fault(files=["old.gin"])


# ------------------------------------------------------------------ wrong types
@pytest.mark.parametrize(
    "binding, words",
    [
        ("STEPS='3'", ["train.steps wants int", "'3'", "write 3"]),
        ("train.steps=3.5", ["wants int", "3.5"]),
        ("train.steps=3.0", ["wants int", "write 3"]),
        ("train.steps=True", ["wants int", "True"]),
        ("train.steps=None", ["wants int"]),
        ("train.steps=@Network", ["wants int"]),
        ("Block.bias=true", ["wants bool", "'true'", "write True"]),
        ("Block.bias=1", ["wants bool"]),
        ("Block.rate='0.1'", ["wants float", "write 0.1"]),
        ("Block.rate=True", ["wants float"]),
        ("Block.act=3", ["wants str"]),
        ("network.Table.kind=sun", ["Literal['sum', 'cat']"]),
        ("Network.clip='1.0'", ["float | None"]),
        ("train.tags=x", ["tuple[str, ...]"]),
        ("train.tags=['x', 3]", ["tuple[str, ...]"]),
        ("train.ratios={'a': 'b'}", ["dict[str, float]"]),
        ("train.ratios=[1.0]", ["dict[str, float]"]),
        ("Network.stack=3", ["Callable"]),
        ("Network.parts={'a': 3}", ["Mapping"]),
        ("Network.parts={'a': @Network()}", ["Mapping"]),
        ("Stack.groups=[(@Block, 1.5)]", ["Sequence"]),
        ("Stack.groups=[@Block]", ["Sequence"]),
        ("Stack.groups=[(%WIDTH, %STEPS)]", ["Sequence", "%STEPS is set at run.gin:4", "%WIDTH is set at", "family.gin:3"]),
        ("train.net=@Network", ["wants Network", "()"]),
        ("train.net=@Stack()", ["wants Network"]),
        ("Block.rate=1e999", ["not finite"]),
    ],
)
def test_a_wrong_type_is_found_at_load(folder, binding, words):
    message = fault(binding)
    assert message.startswith(f"--gin.{binding.partition('=')[0]}"), message
    assert all(w in message for w in words), message


# ------------------------------------------------------------------ what has no effect
def test_a_binding_that_nothing_takes_is_found_when_all_is_built(folder):
    config.load(["run.gin"], ["evaluate.batch=8"])
    train()
    with pytest.raises(UserError, match=r"--gin.evaluate.batch: parts.loop.evaluate.batch has no effect"):
        config.check_used()
    config.configured(importlib.import_module("parts.loop").evaluate)()
    config.check_used()


def test_a_binding_that_the_code_overrides_is_found(folder):
    config.load(["run.gin"], ["Stack.key=3"])
    train()  # Network passes key itself
    with pytest.raises(UserError, match="Stack.key has no effect, the code itself passes it"):
        config.check_used()


def test_a_scope_that_is_opened_for_another_class_has_no_effect(folder):
    config.load(["run.gin"], ["small/Block.rate=0.5"])
    train()
    with pytest.raises(UserError, match="small/parts.network.Block.rate has no effect"):
        config.check_used()


def test_a_binding_behind_narrower_ones_is_found_and_one_before_them_is_not(folder):
    """What an included file binds for all may be specialised for every scope; what is said for all after that was meant to win."""
    base = RUN + "\nparts.loop.train.net = @net/parts.network.Network()\nnet/parts.network.Network.clip = 2.0\n"
    for text, more, dead in ((base, [], None), ("WIDE", [], None), (base, ["Network.clip=3.0"], "--gin.Network.clip"),
                             (base, ["net/Network.clip=3.0"], None), (base + "parts.network.Network.clip = 3.0\n", [], "run.gin:")):
        if text == "WIDE":
            text = base.replace("net/parts.network.Network.clip", "parts.network.Network.clip = 1.0\nnet/parts.network.Network.clip")
        (folder / "run.gin").write_text(text)
        config.load(["run.gin"], more)
        train()
        if dead is None:
            config.check_used()
            continue
        with pytest.raises(UserError, match="Network.clip has no effect, what is bound in a scope wins: net/parts.network.Network.clip") as caught:
            config.check_used()
        assert str(caught.value).startswith(dead), caught.value


def test_the_bindings_of_a_part_that_was_replaced_are_set_aside(folder):
    config.load(["run.gin"], ["Network.stack=None", "Network.parts={}", "train.steps=3"])
    train()
    config.check_used()  # Stack, Block, Table, small/Table, WIDTH and STEPS are all without effect now
    config.load(["run.gin"], ["Network.stack=None", "evaluate.batch=8"])
    train()
    with pytest.raises(UserError, match="evaluate.batch has no effect"):
        config.check_used()


def test_a_missing_binding_is_a_user_error(folder):
    text = FAMILY.replace("network.Block.width = %WIDTH", "network.Block.rate = 0.5").replace("WIDTH = 16\n", "")
    (folder.parent / "shipped" / "family.gin").write_text(text)
    config.load(["run.gin"])
    with pytest.raises(UserError, match="Block needs 'width': bind Block.width") as caught:
        train()
    assert "\n" not in str(caught.value)


def test_a_type_error_of_the_code_stays_one(folder):
    def broken(x: int = 1):
        return (lambda y: y)()

    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        config.configured(broken)()


def test_a_user_error_of_a_part_stays_one_line(folder):
    def refuses(x: int = 1):
        raise UserError("no such activation")

    with pytest.raises(UserError) as caught:
        config.configured(refuses)()
    assert str(caught.value) == "no such activation"


# ------------------------------------------------------------------ saving
def test_the_saved_configuration_gives_the_same_one_again(folder, tmp_path):
    config.load(["run.gin"], ["Block.rate=0.25", "train.ratios={'b': 1.0, 'a': 2.0}", "train.tags=('only',)", "train.name='it\\'s\\nso'"])
    first = train()
    config.save(tmp_path / "out")
    text = (tmp_path / "out" / "config.gin").read_text()
    config.load([str(tmp_path / "out" / "config.gin")])
    again = train()
    config.check_used()
    assert config.operative() == text
    assert again[1:] == first[1:] == (10, "it's\nso", {"b": 1.0, "a": 2.0}, ("only",)) and list(again[3]) == ["b", "a"]
    assert list(again[0].parts.items()) == list(first[0].parts.items()) and again[0].stack.blocks == first[0].stack.blocks
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["config.gin"]


def test_the_saved_file_is_plain_gin_with_one_binding_a_line(folder):
    config.load(["run.gin"])
    train()
    assert config.operative().splitlines() == [
        "from __gin__ import dynamic_registration",
        "import parts.loop",
        "import parts.network",
        "",
        "STEPS = 10",
        "WIDTH = 16",
        "parts.loop.train.name = 'run'",
        "parts.loop.train.net = @parts.network.Network()",
        "parts.loop.train.ratios = {}",
        "parts.loop.train.steps = %STEPS",
        "parts.loop.train.tags = ()",
        "parts.network.Block.act = 'gelu'",
        "parts.network.Block.bias = True",
        "parts.network.Block.rate = 0.1",
        "parts.network.Block.width = %WIDTH",
        "parts.network.Network.clip = None",
        "parts.network.Network.parts = {'types': @small/parts.network.Table(), 'tokens': @parts.network.Table()}",
        "parts.network.Network.stack = @parts.network.Stack",
        "parts.network.Stack.groups = [(@parts.network.Block, 2)]",
        "parts.network.Stack.remat = False",
        "parts.network.Table.kind = 'sum'",
        "parts.network.Table.rows = 100",
        "small/parts.network.Table.kind = 'sum'",
        "small/parts.network.Table.rows = 3",
    ]


def test_same_run_lists_what_differs_but_for_what_may(folder, tmp_path):
    config.load(["run.gin"])
    train()
    assert config.same_run(tmp_path) == []
    config.save(tmp_path)
    assert config.same_run(tmp_path) == []
    config.load(["run.gin"], ["STEPS=20", "Block.rate=0.5", "train.name='x = 1'"])
    train()
    assert config.same_run(tmp_path) == [
        "STEPS: 10 -> 20",
        "parts.loop.train.name: 'run' -> 'x = 1'",
        "parts.network.Block.rate: 0.1 -> 0.5",
    ]
    assert config.same_run(tmp_path, {"STEPS", "train.name"}) == ["parts.network.Block.rate: 0.1 -> 0.5"]
    (tmp_path / config.SAVED).write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UserError, match="config.gin: this is not text"):
        config.same_run(tmp_path)
    config.load(["run.gin"], ["Network.stack=None"])
    assert train()[0].stack is None


def test_a_module_that_only_registers_is_imported_by_the_saved_configuration(folder, tmp_path, monkeypatch):
    """It is found where the command runs, as for `python -m`; from elsewhere one line says what to do."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (folder / "registers_only.py").write_text("DONE = True\n")
    (folder / "run.gin").write_text(RUN.replace("import parts.loop\n", "import parts.loop\nimport registers_only\n"))
    config.load(["run.gin"])
    train()
    config.save(tmp_path / "out")
    saved = str(tmp_path / "out" / "config.gin")
    assert "import registers_only" in config.operative().splitlines()
    del sys.modules["registers_only"]
    config.load([saved])
    train()
    assert sys.modules["registers_only"].DONE and config.operative() == (tmp_path / "out" / "config.gin").read_text()
    del sys.modules["registers_only"]
    sys.path.remove(str(folder))
    monkeypatch.chdir(tmp_path)
    assert "no module 'registers_only': run the command in the folder of registers_only.py, or put that folder on PYTHONPATH" in fault(
        files=[saved])
