"""All work with gin: loading a configuration, checking it whole, and saving what a run used.

gin (0.5.0, pinned) lets misspelt macros, scopes and wrong types pass and reports the rest over many lines.  Here every fault
is one line that names the nearest right name, raised before anything is built (`load`) or before the first step
(`check_used`).  gin's tables are private; only cli/config.py and cli/reading.py know them.

Scopes come from references alone (`@generator/Encoder()`), and a reference replaces the scope that it is called in.
"""
import contextlib
import functools
import inspect
import re
import tokenize
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gin.config as _gin
from etils import epath

from ptmjax.cli import annotations, places
from ptmjax.cli.reading import MACRO, REPLACED, WHERE, Fault, bind_all, constructor, find, located, nearest, read, take, text_of
from ptmjax.data.text import first_line
from ptmjax.types import Late, UserError

SAVED = "config.gin"
_BINDING = re.compile(r"([\w./]+) = (.*)")


def add_arguments(parser) -> None:
    """Options of a command that is configured: --gin_file, once or more, and --gin.NAME=VALUE, which main collects."""
    parser.add_argument("--gin_file", action="append", default=[], dest="gin_files", metavar="FILE",
                        help="what to train: a shipped file by its name (`ptmjax list`) or your own; given again, the later one wins")
    parser.set_defaults(gin_bindings=[])
    parser.epilog = ("--gin.NAME=VALUE wins over the files: --gin.STEPS=1000 (of two stages --gin.STEPS_SHORT and\n"
                     "--gin.STEPS_LONG), --gin.Block.rate=0.1; the file that `ptmjax list` shows has the names")


def load(files: Sequence[str], bindings: Sequence[str] = (), more: str = "", what: str = "--gin_file") -> None:
    """Replaces the configuration by `files` in order (`what` names them), what other options say as lines of gin (`more`), then
    `bindings` (NAME=VALUE).  Anything misspelt or mistyped is a UserError."""
    _gin.clear_config()
    WHERE.clear()
    REPLACED.clear()
    for name in files:
        read(find(name, what))
    take(epath.Path("--data"), more)
    bind_all(bindings)
    _check_names()
    for scope, selector, argument, value in _bindings():
        with located(_origin(scope, selector, argument)):
            _check_value(selector, argument, value)


def configured(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function (or class) with what gin binds to its arguments.  A binding that is missing is a UserError when it is called."""
    if _gin._inverse_lookup(function) is None:
        _gin.external_configurable(function, module=function.__module__)
    target = _gin.get_configurable(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return target(*args, **kwargs)
        except UserError as error:
            raise blamed(error) from error
        except (TypeError, RuntimeError) as error:
            if missing := _missing(str(error)):
                raise UserError(missing) from error
            raise

    return call


_CALL = re.compile(r"In call to configurable '(\w+)' \(.*?\)(?: in scope '([^']*)')?$", re.M)


def blamed(error: UserError) -> UserError:
    """The fault in one line. gin appends in which calls it came up, innermost first: where one of them was given the argument
    that the fault names ("steps is 0"), the line begins with the place of that binding."""
    message = first_line(error)
    named = re.match(r"(\w+) is ", message)
    for called, scope in _CALL.findall(str(error)) if named else ():
        given = [(at, selector) for at, selector, argument, _ in _bindings()
                 if argument == named[1] and selector.rpartition(".")[2] == called and f"{scope}/".startswith(f"{at}/" if at else "")]
        if given:
            return UserError(f"{_origin(*max(given, key=lambda g: len(g[0])), named[1])}: {called}.{message}")
    return (Late if isinstance(error, Late) else UserError)(message)


def _origin(scope: str, selector: str, argument: str, above: tuple[str, ...] = ()) -> str:
    """Where the value of an argument was written: of a macro, where that was set."""
    macro = _macro_of(_gin._CONFIG[scope, selector][argument])
    if macro is None or macro in above:
        return WHERE[scope, selector, argument]
    return _origin(macro, MACRO, "value", (*above, macro))


def _set_at(value: Any) -> str:
    """Where the macros inside a list, tuple or dict were set."""
    inside = [] if _macro_of(value) is not None else _gin.iterate_references(value)
    macros = sorted({macro for r in inside if (macro := _macro_of(r)) is not None})
    return "".join(f"; %{macro} is set at {_origin(macro, MACRO, 'value')}" for macro in macros)


def _missing(message: str) -> str | None:
    """What gin and Python say of an argument that nothing supplied, in one line; None for other messages."""
    if found := re.match(r"Required bindings for `(?:.*\.)?(\w+)` not provided in config: \['(\w+)'", message):
        return f"{found[1]} needs {found[2]!r}: bind {found[1]}.{found[2]}"
    found = re.match(r"([\w.<>]+)\(\) missing \d+ required (?:positional|keyword-only) arguments?: '(\w+)'", message)
    called = re.search(r"In call to configurable '(\w+)'", message)
    if not found or not called or called[1] != re.sub(r"\.__(init|new)__$", "", found[1]).rpartition(".")[2]:
        return None  # a fault of the code, not of the configuration
    return f"{called[1]} needs {found[2]!r}: bind {called[1]}.{found[2]}, or write @{called[1]} without () where the code supplies it"


# ------------------------------------------------------------------ checks
def _bindings():
    """(scope, selector, argument, value) of all that is bound."""
    return [(scope, selector, a, value) for (scope, selector), bound in _gin._CONFIG.items() for a, value in bound.items()]


def _macro_of(value: Any) -> str | None:
    """The macro that a value stands for."""
    is_one = isinstance(value, _gin.ConfigurableReference) and value.configurable.selector == MACRO
    return "/".join(value.scopes) if is_one else None


def _check_names() -> None:
    """Macros used but not defined, or defined but not used; scopes that no reference opens."""
    defined = {scope for scope, selector in _gin._CONFIG if selector == MACRO}
    references = list(_gin.iterate_references([_gin._CONFIG, REPLACED]))
    used = {macro for r in references if (macro := _macro_of(r)) is not None}
    opened = {"/".join(r.scopes[: i + 1]) for r in references if r.configurable.module != "gin" for i in range(len(r.scopes))}
    for scope, selector, argument, value in _bindings():
        with located(WHERE[scope, selector, argument]):
            for reference in _gin.iterate_references(value):
                if (macro := _macro_of(reference)) is not None and macro not in defined:
                    raise Fault(f"macro %{macro} is not defined{nearest(macro, defined)}")
            if selector == MACRO and scope not in used:
                raise Fault(f"macro {scope} is never used{nearest(scope, used)}")
            if selector != MACRO and scope and scope not in opened:
                raise Fault(f"no reference @{scope}/... opens the scope {scope!r}{nearest(scope, opened)}")


def _check_value(selector: str, argument: str, value: Any) -> None:
    value, written = _plain(value, ()), value
    if not annotations.finite(value):
        raise Fault(f"{argument} = {value!r} is not finite: a saved configuration cannot hold it")
    function = constructor(_gin._REGISTRY[selector].wrapped)
    wanted = annotations.annotations(function).get(argument, Any)
    parameter = inspect.signature(function).parameters.get(argument)
    is_default = parameter is not None and type(parameter.default) is type(value) and parameter.default == value
    if not is_default and not annotations.fits(value, wanted):
        name = selector.rpartition(".")[2]
        raise Fault(f"{name}.{argument} wants {annotations.shown(wanted)}, not {value!r}{_remedy(value, wanted)}{_set_at(written)}")


def _plain(value: Any, above: tuple[str, ...]) -> Any:
    """value with macros replaced by what they stand for."""
    if isinstance(value, dict):
        return {k: _plain(v, above) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(v, above) for v in value)
    if (macro := _macro_of(value)) is None:
        return value
    if macro in above:
        raise Fault(f"macro %{macro} stands for itself")
    return _plain(_gin._CONFIG[macro, MACRO]["value"], (*above, macro))


def _remedy(value: Any, wanted: Any) -> str:
    """What the user may have meant."""
    if isinstance(value, str):
        with contextlib.suppress(SyntaxError, ValueError, tokenize.TokenError):
            meant = _gin.parse_value(value.capitalize() if value.lower() in ("true", "false", "none") else value)
            return f"; write {meant!r}" if annotations.fits(meant, wanted) else ""
    if isinstance(value, float) and value.is_integer() and annotations.fits(int(value), wanted):
        return f"; write {int(value)}"
    if isinstance(value, _gin.ConfigurableReference) and not value.evaluate:
        return f"; write {value!r}() for what it makes"
    return ""


def check_used() -> None:
    """Call when everything is built: a binding that nothing took has no effect, and is a UserError.

    Not those of parts that a later binding replaced (`--gin.Network.stack=@Other` sets the bindings of Stack aside).
    """
    idle, aside = [], _set_aside()
    for scope, selector, argument, _ in _bindings():
        if selector != MACRO and (why := _idle(scope, selector, argument, selector in aside)):
            idle.append(f"{WHERE[scope, selector, argument]}: {_key(scope, selector, argument)} has no effect, {why}")
    if idle:
        raise UserError("; ".join(idle) + "; remove or correct it")


def _idle(scope: str, selector: str, argument: str, aside: bool) -> str | None:
    """Why no call took this binding; None where one did, where its part was set aside, or where narrower scopes were bound
    after it, as by a file that specialises what it includes. Bound after them, it was meant to win and does not."""
    reaches = lambda scope, at: f"{at}/".startswith(f"{scope}/" if scope else "")
    calls = [(at, taken) for (at, called), taken in _gin._OPERATIVE_CONFIG.items() if called == selector and reaches(scope, at)]
    takers = [at for at, taken in calls if argument in taken]
    if not takers:
        return None if aside else "the code itself passes it" if calls else "nothing that was built uses it"
    order = [bound for bound, *about in WHERE if about == [selector, argument]]  # scopes
    winners = {max((bound for bound in order if reaches(bound, at)), key=len) for at in takers}
    before = [_key(w, selector, argument) for w in order[: order.index(scope)] if w in winners]
    return f"what is bound in a scope wins: {', '.join(before)}" if before and scope not in winners else None


def _set_aside() -> set[str]:
    """Selectors that replaced values lead to, through the bindings of what they name."""
    aside, values = set(), list(REPLACED)
    while values:
        for reference in _gin.iterate_references([values.pop()]):
            selector = reference.configurable.selector
            if (key := _macro_of(reference) or selector) not in aside:
                aside.add(key)
                values += [b for at, b in _gin._CONFIG.items() if at[1] == selector and (selector != MACRO or at == reference.config_key)]
    return aside


# ------------------------------------------------------------------ what a run used
def operative() -> str:
    """What the run used, defaults included, one binding a line: a gin file that gives the same configuration again.

    gin's own operative_config_str sorts the keys of dicts, and the order of a network's parts matters.
    """
    used = _gin._OPERATIVE_CONFIG
    selectors = {s for _, s in used} | {r.configurable.selector for r in _gin.iterate_references(used)}
    imported = {i.module for i in _gin._IMPORTS if not i.module.startswith("__gin__")}  # one that only registers a task has no selector
    modules = sorted(imported | {module for s in selectors if (module := _path(s)[0])})
    bindings = {_key(scope, selector, a): _written(v) for (scope, selector), taken in used.items() for a, v in taken.items()}
    head = ["from __gin__ import dynamic_registration", *(f"import {module}" for module in modules), ""]
    order = sorted(bindings, key=lambda key: ("." in key, key))  # macros first
    return "\n".join([*head, *(f"{key} = {bindings[key]}" for key in order), ""])


def _path(selector: str) -> tuple[str, str]:
    """(module to import, dotted name in it) of a configurable; gin's own have no module."""
    configurable = _gin._REGISTRY[selector]
    if configurable.module == "gin":
        return "", selector
    if configurable.import_source:
        statement, name = configurable.import_source
        return statement.module, name
    return configurable.wrapped.__module__, configurable.wrapped.__qualname__


def _key(scope: str, selector: str, argument: str) -> str:
    if selector == MACRO:
        return scope
    return f"{scope}{scope and '/'}{'.'.join(filter(None, _path(selector)))}.{argument}"


def _written(value: Any) -> str:
    """value as a gin file writes it, on one line."""
    if isinstance(value, _gin.ConfigurableReference):
        if value.configurable.module == "gin" and value.evaluate:
            return f"%{'/'.join(value.scopes)}"
        path = ".".join(filter(None, _path(value.configurable.selector)))
        return f"@{'/'.join([*value.scopes, path])}{'()' if value.evaluate else ''}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_written(k)}: {_written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_written, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


def save(folder: epath.PathLike) -> None:
    """Writes config.gin into the folder, whole or not at all."""
    folder = epath.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    places.whole(folder / SAVED, operative().encode())


def same_run(folder: epath.PathLike, may_differ: Iterable[str] = ()) -> list[str]:
    """How the present configuration differs from the one saved in the folder, "key: saved -> present" each; [] if none is saved.

    may_differ: macros (STEPS) and endings of keys (train.steps) that do not count.
    """
    if not (epath.Path(folder) / SAVED).exists():
        return []
    before, now = saved_keys(folder), _keys(operative())
    free = tuple(may_differ)
    return [
        f"{key}: {before.get(key, '(not set)')} -> {now.get(key, '(not set)')}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not any(key == f or key.endswith((f".{f}", f"/{f}")) for f in free)
    ]


def saved_keys(folder: epath.PathLike) -> dict[str, str]:
    """key -> value of the configuration saved in the folder; a UserError where there is nothing in it any more."""
    path = epath.Path(folder) / SAVED
    if not (found := _keys(text_of(path))):
        raise UserError(f"{path} holds no settings (was the disk full?): delete it and call `ptmjax train` with the gin file of the run, "
                        "which writes it again")
    return found


def _keys(text: str) -> dict[str, str]:
    """key -> value, as operative() writes them."""
    return dict(found.groups() for line in text.splitlines() if (found := _BINDING.fullmatch(line)))
