"""Gin files and `--gin.NAME=VALUE` into gin's tables, every misspelling found on the way.

The statements are gin's own (its parser, its bindings, dynamic registration); what differs from gin.parse_config_file is
that a fault is one UserError with file and line, and the nearest right name.
"""
import contextlib
import difflib
import functools
import importlib
import inspect
import os
import pkgutil
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gin.config as _gin
from etils import epath
from gin import config_parser as _parser

from ptmjax import gin_folder
from ptmjax.cli import quiet
from ptmjax.data.text import first_line
from ptmjax.types import UserError

_DYNAMIC = "from __gin__ import dynamic_registration"
_NOWHERE = _parser.Location(None, 0, None, "")
MACRO = "gin.macro"
WHERE: dict[tuple[str, str, str], str] = {}  # (scope, selector, argument) -> "file:line" or "--gin.NAME" that bound it last; in that order
REPLACED: list[Any] = []  # values that a later binding took the place of: what they name is set aside, not misspelt


class Fault(Exception):
    """What is wrong, before it is known where."""


DEEP = "too many brackets inside each other: write it flatter"


@contextlib.contextmanager
def located(where: str):
    """Faults inside, gin's own among them, become one line that begins with `where`."""
    try:
        yield
    except (Fault, ValueError) as fault:
        raise UserError(f"{where}: {first_line(fault)}") from fault
    except RecursionError as error:
        raise UserError(f"{where}: {DEEP}") from error


def nearest(name: str, known: Iterable[str]) -> str:
    """'; nearest: ...' or nothing."""
    found = difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=0.6)
    return f"; nearest: {found[0]!r}" if found else ""


def arguments(target: Callable[..., Any]) -> tuple[list[str], bool]:
    """The names that gin may bind, and whether any other goes too (**kwargs)."""
    function = constructor(target)
    if function is object.__init__:
        return [], False
    try:
        parameters = list(inspect.signature(function).parameters.values())[inspect.isclass(target) :]
    except ValueError:
        raise Fault(f"{target!r} has no signature that gin could bind to") from None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.kind in named], any(p.kind is p.VAR_KEYWORD for p in parameters)


def constructor(target: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose arguments gin binds."""
    return inspect.unwrap(_gin._find_class_construction_fn(target) if inspect.isclass(target) else target)


# ------------------------------------------------------------------ files
def find(name: str, where: str) -> epath.Path:
    """The file as given, or else in the folder of the shipped ones; with or without .gin."""
    shipped = epath.Path(gin_folder())
    for path in (*(epath.Path(n) for n in (name, f"{name}.gin")), *(shipped / n for n in (name, f"{name}.gin"))):
        if path.is_file():
            return path
    beside = epath.Path(name).parent
    there = [p.name for folder in (beside, shipped, shipped / beside) if folder.is_dir() for p in folder.glob("*.gin")]
    raise UserError(f"{where}: no gin file {name!r} here or in {shipped}{nearest(epath.Path(name).name, there)}")


def read(path: epath.Path, above: tuple[epath.Path, ...] = ()) -> None:
    """One file and what it includes, as gin.parse_config_file would."""
    take(path, text_of(path).removeprefix("\ufeff"), above)  # which some editors put before a text


def take(path: epath.Path, text: str, above: tuple[epath.Path, ...] = ()) -> None:
    """The text of a file, or what stands for one."""
    with _gin._parse_scope() as context:
        for statement in _statements(path, text, _Delegate(functools.partial(_in_file, context))):
            where = f"{path}:{statement.location.line_num}"
            if isinstance(statement, _parser.IncludeStatement):
                included = find(statement.filename, where)
                if included in (*above, path):
                    raise UserError(f"{where}: {statement.filename!r} includes itself; remove one of the includes")
                read(included, (*above, path))
            else:
                with located(where):
                    _take(context, statement, where)
        _gin._IMPORTS.update(context.imports)


def text_of(path: epath.Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        raise UserError(f"{path}: this is not text; give a gin file") from None
    except OSError as e:
        raise UserError(f"{path} cannot be read ({e.strerror or e}): give a gin file that can be read") from e


def _statements(path: epath.Path, text: str, delegate: "_Delegate"):
    """gin's statements one by one: references are resolved while parsing, so imports must have been taken before."""
    parser = None
    try:
        parser = _parser.ConfigParser(text, delegate)
        while (statement := parser.parse_statement()) is not None:
            yield statement
    except SyntaxError as error:
        token = re.search(r"Failed to parse token '(.*)'", str(error.args[0]))
        what = f"cannot read the value {token[1]}: strings need quotes" if token else first_line(error.args[0])
        raise UserError(f"{path}:{error.lineno}: {what}") from error
    except tokenize.TokenError as error:
        raise UserError(f"{path}:{error.args[1][0]}: {error.args[0]}") from error
    except RecursionError as error:
        raise UserError(f"{path}:{parser.current_token.start[0]}: {DEEP}") from error
    except (Fault, ValueError) as fault:
        raise UserError(f"{path}:{parser.current_token.start[0]}: {first_line(fault)}") from fault


def _take(context: _gin.ParseContext, statement: Any, where: str) -> None:
    if isinstance(statement, _parser.ImportStatement):
        _import(context, statement)
    elif isinstance(statement, _parser.BlockDeclaration):
        _in_file(context, statement.selector)
    else:
        if statement.arg_name:
            _in_file(context, statement.selector)
        _bind(statement.scope, statement.selector, statement.arg_name, statement.value, where)


def _import(context: _gin.ParseContext, statement: _parser.ImportStatement) -> None:
    if statement.module.startswith("__gin__") and statement.format() != _DYNAMIC:
        raise Fault(f"unknown {statement.format()!r}; write {_DYNAMIC!r}")
    if (here := os.getcwd()) not in sys.path:  # `ptmjax`, unlike `python -m ptmjax`, does not look where it is called
        sys.path.append(here)
    try:
        with quiet.imports():  # a module of the user's may bring TensorFlow
            context.process_import(statement)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{statement.module}.".startswith(f"{missing}."):
            raise Fault(f"{statement.module} needs the module {missing!r}, which is not installed") from error
        parent, _, name = missing.rpartition(".")
        paths = getattr(importlib.import_module(parent), "__path__", []) if parent else None
        remedy = "" if parent else f": run the command in the folder of {missing}.py, or put that folder on PYTHONPATH"
        public = [m.name for m in pkgutil.iter_modules(paths) if not m.name.startswith("_")]
        raise Fault(f"no module {missing!r}{remedy}{nearest(name, public)}") from error
    except (ImportError, SyntaxError) as error:
        raise Fault(f"{statement.format()!r} fails: {first_line(error)}") from error
    except (Fault, ValueError):
        raise
    except Exception as error:  # whatever a module of the user's does
        raise Fault(f"{statement.format()!r} fails: {type(error).__name__}: {first_line(error)} (PTMJAX_TRACEBACK=1 shows more)") from error


def _bind(scope: str, selector: str, argument: str, value: Any, where: str) -> None:
    """One binding; without an argument it is a macro."""
    if not argument:
        scope, selector, argument = "/".join(filter(None, (scope, selector))), MACRO, "value"
    configurable = _gin._parse_context().get_configurable(selector)
    known, anything = arguments(configurable.wrapped)
    if argument not in known and not anything:
        raise Fault(f"{selector} has no argument {argument!r}{nearest(argument, known)}")
    REPLACED.append(_gin._CONFIG.get((scope, configurable.selector), {}).get(argument))
    _gin.bind_parameter((scope, selector, argument), value)
    WHERE.pop((scope, configurable.selector, argument), None)
    WHERE[scope, configurable.selector, argument] = where


def _in_file(context: _gin.ParseContext, selector: str) -> str:
    """The selector, if it leads to something callable by the file's own imports."""
    if not context._dynamic_registration:
        raise Fault(f"{selector!r} is not known: begin the file with {_DYNAMIC!r} and import its module")
    first, *rest = selector.split(".")
    if first not in context._symbol_table:
        raise Fault(f"{first!r} is not imported in this file{nearest(first, context._symbol_table)}")
    value, path = context._symbol_table[first], first
    for part in rest:
        if not hasattr(value, part):
            raise Fault(f"{path} has no {part!r}{nearest(part, _public(value))}")
        value, path = getattr(value, part), f"{path}.{part}"
    if not callable(value):
        raise Fault(f"{selector!r} is a {type(value).__name__}: only classes and functions can be configured")
    return selector


def _public(value: Any) -> list[str]:
    return [n for n in dir(value) if not n.startswith("_") and (callable(x := getattr(value, n, None)) or inspect.ismodule(x))]


class _Delegate(_gin.ParserDelegate):
    """Makes references as gin does, after `resolve` (selector -> selector) has found what they name."""

    def __init__(self, resolve: Callable[[str], str]):
        super().__init__()
        self._resolve = resolve

    def configurable_reference(self, scoped_selector, evaluate):
        *scopes, selector = scoped_selector.split("/")
        return _gin.ConfigurableReference("/".join([*scopes, self._resolve(selector)]), evaluate)


# ------------------------------------------------------------------ --gin.NAME=VALUE
def bind_all(bindings: Sequence[str]) -> None:
    """NAME=VALUE each.  NAME is a macro, or an ending of a path to an argument: unique among what the files bind, or else import."""
    modules = {s.module: s.alias for s in sorted(_gin._IMPORTS, key=lambda s: s.module) if not s.module.startswith("__gin__")}
    with _gin._parse_scope() as context:
        context.process_import(_parser.ImportStatement("__gin__.dynamic_registration", True, None, _NOWHERE))
        for module in modules:
            context.process_import(_parser.ImportStatement(module, False, None, _NOWHERE))
        resolve = functools.partial(_on_command_line, modules)
        for binding in bindings:
            name, equals, text = binding.partition("=")
            with located(f"--gin.{name}"):
                if not equals or not re.fullmatch(r"([a-zA-Z_]\w*[/.])*[a-zA-Z_]\w*", name):
                    raise Fault(f"cannot read it; write --gin.{name or 'NAME'}=VALUE")
                scope, selector, argument = _parser.parse_binding_key(name)
                _bind(scope, resolve(selector) if argument else selector, argument, _literal(text, _Delegate(resolve)), f"--gin.{name}")


def _on_command_line(modules: dict[str, str | None], selector: str) -> str:
    """The whole dotted path of what `selector` is an ending of."""
    parts, found = selector.split("."), {}
    for module, alias in modules.items():
        for path in filter(None, (module.split("."), alias and [alias])):
            for k in range(min(len(parts), len(path) + 1)):  # parts[:k] is an ending of the module's path, parts[k:] a name in it
                value = functools.reduce(lambda v, p: getattr(v, p, None), parts[k:], sys.modules[module])
                if path[len(path) - k :] == parts[:k] and callable(value):
                    found.setdefault(id(value), ".".join([module, *parts[k:]]))
    if len(found) > 1:  # then the one that the files speak of
        bound = {id(_gin._REGISTRY[s].wrapped) for _, s in _gin._CONFIG}
        found = {k: path for k, path in found.items() if k in bound} or found
    if len(found) > 1:
        raise Fault(f"{selector!r} could be any of {', '.join(found.values())}; write more of the path")
    if not found:
        names = (f"{end}{n}" for m in modules for n in _public(sys.modules[m]) for end in ("", f"{m.rpartition('.')[2]}.", f"{m}."))
        raise Fault(f"{selector!r} is in none of the modules that the gin files import{nearest(selector, names)}")
    return next(iter(found.values()))


def _literal(text: str, delegate: _Delegate) -> Any:
    """A Python literal, @reference or %macro; anything else is a string."""
    with contextlib.suppress(SyntaxError, tokenize.TokenError):
        parser = _parser.ConfigParser(text, delegate)
        value = parser.parse_value()
        ends = parser.current_token.type in (tokenize.NEWLINE, tokenize.ENDMARKER)
        if ends and not "".join(text.splitlines()[parser.current_token.start[0] :]).strip():
            return value
    if text.startswith(("@", "%", "[", "{", "(", "'", '"')):
        raise Fault(f"cannot read the value {text!r}")
    return text
