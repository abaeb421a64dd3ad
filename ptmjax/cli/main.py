"""`ptmjax COMMAND [options]`: finds the command's file, reads its options, and turns a fault that its user can mend
into one line.

A command is a module of ptmjax/cli with HELP (one line, a literal), EXAMPLES (command lines), add_arguments(parser) and run(args)
-> exit code.  Only the one asked for is imported, so `ptmjax --help` needs no jax.
"""
import argparse
import ast
import difflib
import errno
import importlib
import os
import pkgutil
import re
import signal
import sys
import textwrap
import traceback
from pathlib import Path
from types import ModuleType

import ptmjax
import ptmjax.cli
from ptmjax.cli import quiet
from ptmjax.training import interrupt

BEGIN = """
To begin with:
  ptmjax list                                                      # what can be trained
  ptmjax inspect --gin_file=bert_demo.gin                          # what the model is shown
  ptmjax train --gin_file=bert_demo.gin --workdir=runs/demo        # a small BERT, on two cores
  ptmjax fill --workdir=runs/demo "the united [MASK] of america"

ptmjax COMMAND --help tells a command's options, with examples."""


class Usage(Exception):
    """A command line that cannot be read."""


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Usage(f"{message}; see {self.prog} --help")


def commands() -> dict[str, str]:
    """name -> HELP of the modules that have one, read without importing them."""
    found = {}
    for module in pkgutil.iter_modules(ptmjax.cli.__path__):
        tree = ast.parse((Path(module.module_finder.path) / f"{module.name}.py").read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "HELP" for t in node.targets):
                found[module.name] = ast.literal_eval(node.value)
    return found


def say(text: str) -> None:
    """A line on the screen, in one piece: those of several processes would otherwise stand in each other."""
    if sys.stderr is not None:  # which it is where it was closed
        sys.stderr.write(f"ptmjax: {text}\n")


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0, 2 for a fault that the user can mend, LOST where another process of the run is gone or late, 130 for Ctrl-C, 141
    where who reads the output has gone, 143 for a run that SIGTERM has stopped and that is saved. PTMJAX_TRACEBACK=1 shows where a fault
    came from."""
    quiet.set_levels()
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:  # which it is where it was closed
            sys.stdout.flush()  # here, where what the disk does is told
        return code
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich's way
            return 128 + signal.SIGPIPE
        raise
    except KeyboardInterrupt:
        say(interrupt.told())
        return interrupt.CODE
    except interrupt.Stopped as stopped:
        say(str(stopped))
        return interrupt.TERMINATED
    except Exception as error:
        if interrupt.asked():  # what a package makes of an interrupt while it is imported
            say(interrupt.told())
            return interrupt.CODE
        if isinstance(error, BrokenPipeError):  # who read the output has gone, as `head` does
            return 128 + signal.SIGPIPE
        if (told := _told(error)) is None:
            raise
        if os.environ.get("PTMJAX_TRACEBACK") == "1":
            traceback.print_exc()
        say(f"error: {told}")
        return LOST if _lost(error) else 2


LONG = 255  # bytes of a name on the usual file systems
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
PEERS = re.compile("Gloo|[Cc]oordination|[Hh]eartbeat|peer")
LOST = 75  # EX_TEMPFAIL: nothing is to be mended here, a launcher starts all processes again


def _told(error: Exception) -> str | None:
    """The line about a fault that the user can mend; None for a fault of this code."""
    types, jax, tf = (sys.modules.get(name) for name in ("ptmjax.types", "jax", "tensorflow"))  # not imported: then they raised nothing
    text = (str(error).splitlines() or [type(error).__name__])[0]
    if isinstance(error, Usage) or (types is not None and isinstance(error, types.UserError)):
        return "\\n".join(str(error).splitlines()) or text
    if isinstance(error, OSError) and error.errno in FULL:
        return f"{error.filename or 'the output'} cannot be written ({error.strerror}): make room, or write elsewhere"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"{str(error.filename)[:80]}... is too long a name of a file or folder: give one whose parts have at most {LONG} bytes each"
    if tf is not None and isinstance(error, tf.errors.OpError):  # it reads and writes gs:// for epath, and computes nothing here
        why = " ".join(str(error).split())[:300]
        return f"a file far away cannot be reached ({why}): check its address, the network and your access to it"
    device = jax is not None and isinstance(error, jax.errors.JaxRuntimeError)
    if isinstance(error, MemoryError) or device and "RESOURCE_EXHAUSTED" in text:
        return (f"no memory is left ({text[:120]}): take a smaller batch (Stage.batch, --batch) or fewer and shorter texts, raise "
                "Stage.micro, or spread the run by Experiment.mesh")
    if _lost(error):
        return (f"another process of this run is gone ({text[:120]}): start all of them again, they go on from the last checkpoint "
                "(PTMJAX_TRACEBACK=1 shows more)")
    return None


def _lost(error: Exception) -> bool:
    """Whether another process of this run has not come, or is gone by what jax says."""
    types, jax = sys.modules.get("ptmjax.types"), sys.modules.get("jax")
    if types is not None and isinstance(error, types.Late):
        return True
    if jax is None or not isinstance(error, jax.errors.JaxRuntimeError) or "RESOURCE_EXHAUSTED" in str(error):
        return False
    return jax.distributed.is_initialized() and PEERS.search(str(error)) is not None


def _run(argv: list[str]) -> int:
    known = commands()
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, known), default=0)
        print("usage: ptmjax COMMAND [options]\n")
        print("\n".join(f"  {name:{width}}  {known[name]}" for name in sorted(known)))
        print(BEGIN)
        return 0
    if argv[0] == "--version":
        print(f"ptmjax {ptmjax.__version__}")
        return 0
    name, *rest = argv
    if name not in known:
        raise Usage(f"no command {name!r}{_nearest(name, known)}; see ptmjax --help")
    module = importlib.import_module(f"ptmjax.cli.{name}")
    parser = parser_of(name, module, known[name])
    args = options(parser, rest)
    interrupt.busy()
    return module.run(args)


def parser_of(name: str, module: ModuleType, help: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=f"ptmjax {name}", description=help, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    module.add_arguments(parser)
    examples = "examples:\n" + textwrap.indent(module.EXAMPLES.strip("\n"), "  ")
    parser.epilog = "\n\n".join(filter(None, [parser.epilog, examples]))
    return parser


def options(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """The parsed options; --gin.NAME=VALUE go to gin_bindings where the command has that (config.add_arguments)."""
    configured = parser.get_default("gin_bindings") is not None
    bindings = [a.removeprefix("--gin.") for a in argv if configured and a.startswith("--gin.")]
    args, unknown = parser.parse_known_args([a for a in argv if not (configured and a.startswith("--gin."))])
    if unknown:
        option = unknown[0].partition("=")[0]
        what = "option" if option.startswith("-") else "argument"
        raise Usage(f"unknown {what} {option!r}{_nearest(option, parser._option_string_actions)}; see {parser.prog} --help")
    if configured:
        args.gin_bindings = bindings
    return args


def _nearest(name: str, known) -> str:
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; nearest: {found[0]!r}" if found else ""
