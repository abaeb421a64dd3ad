"""The process `ptmjax`: Ctrl-C at any moment is 130, and nothing delays or crashes an end with a fault."""
import os
import subprocess
import sys
import textwrap
import time

import pytest

import ptmjax.training.loop
from ptmjax.training import interrupt
from tests.drivers import tiny

PREFACE = '''
    """A stand-in for a command."""
    import os, signal, threading, time
    from ptmjax.types import UserError
    HELP = "stands in"
    EXAMPLES = ""
    def add_arguments(parser): pass
    def stop(): os.kill(os.getpid(), signal.SIGINT)
'''
HOOK = '''
    def run(args):
        import gc
        gc.callbacks.append(lambda phase, about: stop() if phase == "stop" else None)
        gc.collect()
        gc.callbacks.clear()
        time.sleep(20)
        return 0
'''
STOPPED = '''
    def run(args):
        from ptmjax.training import interrupt
        terminate = lambda: os.kill(os.getpid(), signal.SIGTERM)
        with interrupt.stoppable():
            assert not interrupt.terminated()
            terminate()
            assert interrupt.terminated()
        terminate()  # a second one, while what was saved is closed
        raise interrupt.Stopped(7)
'''
COMMANDS = {  # name -> (what it does, exit code, what it says)
    "plainly": ("def run(args): stop(); time.sleep(20)", 130, "ptmjax: interrupted\n"),
    "hook": (HOOK, 130, "ptmjax: interrupted\n"),
    "destructor": ("class Gone:\n        def __del__(self): stop()\n    def run(args): Gone(); time.sleep(20)", 130, "ptmjax: interrupted\n"),
    "importing": ("try: stop()\n    except BaseException as e: raise ImportError('half') from e", 130, "ptmjax: interrupted\n"),
    "late": ("def run(args):\n        try: stop()\n        except BaseException as e: raise ImportError('half') from e", 130, "ptmjax: interrupted\n"),
    "twice": ("def run(args):\n        try: stop()\n        finally: stop(); time.sleep(20)", 130, "ptmjax: interrupted\n"),
    "training": ("def run(args):\n        from ptmjax.training import interrupt\n        with interrupt.stoppable(): stop(); time.sleep(20)", 130,
                 "ptmjax: interrupted: the same command goes on from the last checkpoint\n"),
    "thread": ("def run(args):\n        threading.Thread(target=time.sleep, args=[20]).start()\n        raise UserError('disk: mend it')", 2,
               "ptmjax: error: disk: mend it\n"),
    "bug": ("def run(args):\n        threading.Thread(target=time.sleep, args=[20]).start()\n        raise ZeroDivisionError('a bug')", 1, "a bug\n"),
    "terminated": ("def run(args): os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)", -15, ""),
    "stopped": (STOPPED, 143, "ptmjax: stopped by SIGTERM, step 7 is saved: the same command goes on\n"),
    "fine": ("def run(args): return 0", 0, ""),
}  # fmt: skip
TYPES = "class UserError(Exception): pass\nclass Late(UserError): pass"  # ptmjax.types imports jax, seconds of it


def begun(folder, name, body):
    """Python's words for a command that does this."""
    (folder / f"{name}.py").write_text(textwrap.dedent(PREFACE) + textwrap.dedent("    " + body.lstrip("\n").lstrip()))
    return ("import sys, types, ptmjax.cli; from ptmjax.__main__ import console; sys.modules['ptmjax.types'] = t = types.ModuleType('t')\n"
            f"exec({TYPES!r}, t.__dict__); ptmjax.cli.__path__.append({str(folder)!r}); sys.argv = ['ptmjax', {name!r}]; console()")


@pytest.mark.parametrize("name", COMMANDS)
def test_how_a_process_ends(tmp_path, name):
    body, code, said = COMMANDS[name]
    start, begin = begun(tmp_path, name, body), time.monotonic()
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, env=dict(os.environ), timeout=60)
    assert done.returncode == code and time.monotonic() - begin < 10, done
    assert done.stderr.endswith(said) and done.stderr.count("\n") == said.count("\n") or name == "bug" and said in done.stderr, done.stderr
    assert ("Traceback" in done.stderr) == (name == "bug")


def test_a_terminal_that_is_closed_fails_nothing(tmp_path):
    """Its SIGHUP is ignored, as by launch/again.sh: what is written to it would raise, in the middle of a save."""
    body = """
    def run(args):
        import sys
        print("here", sys.stdout.isatty(), flush=True)
        while sys.stdout.isatty(): time.sleep(0.01)
        for stream in (sys.stdout, sys.stderr): print("gone", file=stream, flush=True)
        return 143
    """
    here, there = os.openpty()
    start = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + begun(tmp_path, "terminal", body)
    with subprocess.Popen([sys.executable, "-c", start], stdin=there, stdout=there, stderr=there) as run:
        os.close(there)
        assert os.read(here, 100) == b"here True\r\n"
        os.close(here)
        assert run.wait(30) == 143


def test_the_loop_raises_an_interrupt_that_was_swallowed(tmp_path, monkeypatch):
    """Before the next step; the steps until then are saved."""
    make = ptmjax.training.loop.make_step

    def made(plan):
        step = make(plan)

        def one(state, batch):
            interrupt._state["asked"] = int(state.step) + 1 == 3
            return step(state, batch)

        return one

    monkeypatch.setitem(interrupt._state, "asked", False)
    monkeypatch.setattr(ptmjax.training.loop, "make_step", made)
    with pytest.raises(KeyboardInterrupt):
        tiny.run([tiny.stage(tiny.lstm)], tmp_path)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["3"]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
@pytest.mark.parametrize("name, given, again", [("ptmjax", None, True), ("ptmjax", "glibc.malloc.check=0", False), ("my_script.py", None, False)])
def test_the_command_begins_anew_with_huge_pages_unless_it_is_told_otherwise(tmp_path, name, given, again):
    (tmp_path / name).write_text("from ptmjax.__main__ import with_huge_pages\nimport os, sys\nprint('begun', flush=True)\nwith_huge_pages()\n"
                                 "print(os.environ.get('GLIBC_TUNABLES'), *sys.argv[1:])\n")
    env = {key: x for key, x in os.environ.items() if key != "GLIBC_TUNABLES"} | ({"GLIBC_TUNABLES": given} if given else {})
    done = subprocess.run([sys.executable, str(tmp_path / name), "a b", "--c=''"], capture_output=True, text=True, env=env, timeout=60)
    found = "glibc.malloc.hugetlb=1" if again else given
    assert done.stdout == "begun\n" * (1 + again) + f"{found} a b --c=''\n", done


@pytest.mark.parametrize("command", [["-"], ["-c", "from ptmjax.__main__ import console; console()"]])
def test_a_program_from_standard_input_or_the_command_line_runs_once(command):
    env = {key: x for key, x in os.environ.items() if key != "GLIBC_TUNABLES"}
    done = subprocess.run([sys.executable, *command, "nosuch"], input="from ptmjax.__main__ import console; console()", capture_output=True, text=True,
                          env=env, timeout=60)
    assert done.returncode == 2 and "no command 'nosuch'" in done.stderr


@pytest.mark.parametrize("code, told", [("head", 141), ("closed", 0)])
def test_output_that_nobody_reads(code, told):
    """rich makes SystemExit(1) of a broken pipe; a closed standard output is None."""
    shell = {"head": "ptmjax list | true; exit ${PIPESTATUS[0]}", "closed": "ptmjax --version >&-"}[code]
    done = subprocess.run(["bash", "-c", shell.replace("ptmjax", f"{sys.executable} -m ptmjax")], capture_output=True, text=True, timeout=120)
    assert done.returncode == told and "Traceback" not in done.stderr, done
