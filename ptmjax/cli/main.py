"""`ptmjax COMMAND [options]`: finds the command's file, reads its options, and turns a UserError into one line.

A command is a module of ptmjax/cli with HELP (one line, a literal), add_arguments(parser) and run(args) -> exit code.  Only the
one asked for is imported, so `ptmjax --help` needs no jax.
"""
import argparse
import ast
import difflib
import importlib
import os
import pkgutil
import sys
import traceback
from pathlib import Path

import ptmjax
import ptmjax.cli
from ptmjax.cli import quiet
from ptmjax.training import interrupt


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


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0, 2 for a fault that the user can mend, 130 for Ctrl-C.  PTMJAX_TRACEBACK=1 shows where a fault came from."""
    quiet.set_levels()
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        print("ptmjax: interrupted", file=sys.stderr)
        return interrupt.CODE
    except Exception as error:
        if interrupt.asked():  # what a package makes of an interrupt while it is imported
            print("ptmjax: interrupted", file=sys.stderr)
            return interrupt.CODE
        if not _is_users(error):
            raise
        if os.environ.get("PTMJAX_TRACEBACK") == "1":
            traceback.print_exc()
        print(f"ptmjax: error: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2


def _is_users(error: Exception) -> bool:
    types = sys.modules.get("ptmjax.types")  # not imported: then none was raised
    return isinstance(error, Usage) or (types is not None and isinstance(error, types.UserError))


def _run(argv: list[str]) -> int:
    known = commands()
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, known), default=0)
        print("usage: ptmjax COMMAND [options]\n")
        print("\n".join(f"  {name:{width}}  {known[name]}" for name in sorted(known)))
        print("\nptmjax COMMAND --help tells a command's options.")
        return 0
    if argv[0] == "--version":
        print(f"ptmjax {ptmjax.__version__}")
        return 0
    name, *rest = argv
    if name not in known:
        raise Usage(f"no command {name!r}{_nearest(name, known)}; see ptmjax --help")
    module = importlib.import_module(f"ptmjax.cli.{name}")
    parser = _Parser(prog=f"ptmjax {name}", description=known[name], allow_abbrev=False)
    module.add_arguments(parser)
    args = _options(parser, rest)
    interrupt.busy()
    return module.run(args)


def _options(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
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
