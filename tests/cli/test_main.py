"""The command line: exit codes, one line for a user's fault, nothing heavy for --help."""
import importlib
import os
import shlex
import subprocess
import sys
import textwrap
import time

import jax
import pytest

import ptmjax
import ptmjax.cli
from ptmjax.cli.config import blamed
from ptmjax.cli.main import BEGIN, _lost, _told, commands, main, options, parser_of
from ptmjax.types import Late

COMMANDS = {
    "hail": '''
        """A stand-in for a command."""
        import os
        from ptmjax.types import UserError
        HELP = "says hail"
        EXAMPLES = "ptmjax hail the whale"

        def add_arguments(parser):
            parser.add_argument("words", nargs="*")
            parser.add_argument("--times", type=int, default=1)
            parser.add_argument("--fail", choices=["user", "stop", "bug", "disk", "memory", "reader", "lost", "late", "long"])

        def run(args):
            if args.fail == "user":
                raise UserError("no such whale: look elsewhere\\n  In call to configurable 'x'")
            if args.fail == "stop":
                raise KeyboardInterrupt
            if args.fail == "memory":
                raise MemoryError
            if args.fail == "reader":
                raise BrokenPipeError
            if args.fail == "disk":
                raise OSError(28, "No space left on device")
            if args.fail == "lost":
                import jax
                raise jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllGather failed: Connection closed by peer")
            if args.fail == "late":
                from ptmjax.types import Late
                raise Late("process 1 of 0 to 1 did not come: start all again")
            if args.fail == "long":
                open(300 * "x")
            if args.fail == "bug":
                raise ZeroDivisionError("a bug")
            print(" ".join(args.words * args.times), os.environ["TF_CPP_MIN_LOG_LEVEL"])
            return 7
    ''',
    "tuned": '''
        from ptmjax.cli import config
        HELP = "takes gin"
        EXAMPLES = "ptmjax tuned"

        def add_arguments(parser):
            config.add_arguments(parser)

        def run(args):
            print(args.gin_files, args.gin_bindings)
            return 0
    ''',
    "helper": "import no_such_package  # no HELP: not a command, and never imported",
}


@pytest.fixture(autouse=True)
def stand_ins(tmp_path, monkeypatch):
    for name, source in COMMANDS.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.setattr(ptmjax.cli, "__path__", [*ptmjax.cli.__path__, str(tmp_path)])
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    monkeypatch.delenv("PTMJAX_TRACEBACK", raising=False)
    yield
    for name in COMMANDS:
        sys.modules.pop(f"ptmjax.cli.{name}", None)


def test_a_command_is_a_module_with_help():
    found = commands()
    assert found["hail"] == "says hail" and found["tuned"] == "takes gin" and not {"helper", "main", "config"} & found.keys()


def test_run_gets_the_options_and_gives_the_exit_code(capsys):
    assert main(["hail", "thee", "--times", "2"]) == 7
    assert capsys.readouterr().out == "thee thee 2\n"


def test_gin_options(capsys):
    assert main(["tuned", "--gin.A=1", "--gin_file=a.gin", "--gin_file", "b.gin", "--gin.x/B.c='d e'"]) == 0
    assert capsys.readouterr().out == "['a.gin', 'b.gin'] ['A=1', \"x/B.c='d e'\"]\n"
    assert main(["tuned"]) == 0
    assert capsys.readouterr().out == "[] []\n"


@pytest.mark.parametrize(
    "argv, words",
    [
        (["hial"], ["'hial'", "'hail'"]),
        (["hail", "--tmies=2"], ["--tmies", "'--times'"]),
        (["hail", "--time=2"], ["--time", "'--times'"]),
        (["hail", "--times=two"], ["--times", "'two'"]),
        (["hail", "--times"], ["--times"]),
        (["hail", "--fail=maybe"], ["maybe", "user"]),
        (["hail", "--gin.A=1"], ["--gin.A"]),
        (["tuned", "--gin-file=a"], ["--gin-file", "'--gin_file'"]),
        (["tuned", "a.gin"], ["a.gin"]),
        (["hail", "--fail=user"], ["no such whale: look elsewhere"]),
        (["hail", "--fail=disk"], ["the output cannot be written (No space left on device): make room"]),
        (["hail", "--fail=memory"], ["no memory is left (MemoryError)", "Stage.batch"]),
    ],
)
def test_a_users_fault_is_one_line_and_exit_code_2(capsys, argv, words):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("ptmjax: error: ") and err.count("\n") == 1 and all(w in err for w in words), err


def test_the_traceback_on_demand(capsys, monkeypatch):
    monkeypatch.setenv("PTMJAX_TRACEBACK", "1")
    assert main(["hail", "--fail=user"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("text, told", [
    ("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore", "no memory is left (RESOURCE_EXHAUSTED: Out of memory"),
    ("UNKNOWN: Gloo AllGather failed: Connection closed by peer", "another process of this run is gone (UNKNOWN: Gloo"),
    ("INTERNAL: a fault of the code", None),
])
def test_faults_of_a_device(text, told, monkeypatch):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    line = _told(error := jax.errors.JaxRuntimeError(text))
    assert line is told is None or told in line and "\n" not in line
    assert _lost(error) == ("Gloo" in text)


def test_a_process_that_is_gone_is_a_code_of_its_own(capsys, monkeypatch):
    """Launchers start all again on it, and never on 2."""
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    assert main(["hail", "--fail=lost"]) == 75
    assert capsys.readouterr().err.startswith("ptmjax: error: another process of this run is gone (UNKNOWN: Gloo")


def test_a_process_that_does_not_come_is_told_as_one_that_is_gone(capsys):
    assert main(["hail", "--fail=late"]) == 75
    assert capsys.readouterr().err == "ptmjax: error: process 1 of 0 to 1 did not come: start all again\n"
    assert isinstance(blamed(Late("slow")), Late)  # nor is it another fault where the parts of a run are put together


def test_a_name_that_no_file_can_have_is_one_line(capsys):
    assert main(["hail", "--fail=long"]) == 2
    assert capsys.readouterr().err == (f"ptmjax: error: {80 * 'x'}... is too long a name of a file or folder: give one whose parts have at "
                                       "most 255 bytes each\n")


def test_a_bucket_that_cannot_be_reached():
    import tensorflow as tf

    told = _told(tf.errors.FailedPreconditionError(None, None, "Could not resolve host\n\t when reading metadata of gs://b/x"))
    assert told == ("a file far away cannot be reached (Could not resolve host when reading metadata of gs://b/x): "
                    "check its address, the network and your access to it")


def test_who_reads_the_output_may_go(capsys):
    assert main(["hail", "--fail=reader"]) == 141
    assert capsys.readouterr() == ("", "")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "ptmjax", "--help"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_behind_the_output_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "ptmjax", "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr == "ptmjax: error: the output cannot be written (No space left on device): make room, or write elsewhere\n"


def test_ctrl_c_is_130_and_a_bug_is_a_traceback(capsys):
    assert main(["hail", "--fail=stop"]) == 130
    assert capsys.readouterr().err.startswith("ptmjax: interrupted")  # more, where a test before has trained in this process
    with pytest.raises(ZeroDivisionError):
        main(["hail", "--fail=bug"])


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(capsys, argv):
    assert main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: ptmjax") and ["hail", "says", "hail"] in [line.split() for line in lines]


def test_a_commands_help_ends_with_examples(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["tuned", "--help"])
    out = capsys.readouterr().out
    assert "--gin.STEPS=1000" in out and out.endswith("examples:\n  ptmjax tuned\n")


def test_every_example_can_be_read():
    """Of all commands, and of `ptmjax --help`."""
    known = commands()
    parsers = {name: parser_of(name, module, known[name]) for name in known for module in [importlib.import_module(f"ptmjax.cli.{name}")]}
    lines = [line for name in known for line in sys.modules[f"ptmjax.cli.{name}"].EXAMPLES.splitlines() if line]
    assert {line.split()[1] for line in lines} == set(known)
    for line in lines + [line for line in BEGIN.splitlines() if line.startswith("  ptmjax")]:
        _, name, *rest = shlex.split(line, comments=True)
        options(parsers[name], rest)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ptmjax {ptmjax.__version__}\n"


def test_help_imports_nothing_heavy():
    code = "import sys, ptmjax.cli.main as m; m.main(['--help']); print(sorted({'jax', 'gin', 'numpy', 'tensorflow'} & sys.modules.keys()))"
    start = time.monotonic()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]" and time.monotonic() - start < 5


def test_python_m_ptmjax():
    done = subprocess.run([sys.executable, "-m", "ptmjax", "hial"], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 2 and done.stderr.startswith("ptmjax: error: no command 'hial'")
