"""Configuration is a value, checked once, completely. No IO.

A setting is a field of a frozen dataclass; its name in files is Apache's (`journalDirectory`), given by
`setting(...)`. Files have the form of Apache's `*.conf`: `name=value` lines, `#` comments. This module
takes text and gives values; the daemon reads the file.
"""

import dataclasses
import difflib
import logging
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from magnetar_core.runtime.types import ConfigurationError

log = logging.getLogger(__name__)

C = TypeVar("C")

# Settings are also read from the environment: PULSAR_PREFIX_journalDirectory=…, as Apache's containers do.
ENVIRONMENT_PREFIX = "PULSAR_PREFIX_"

# Limits of a number whose setting has none. Times: a hundred years, which every timer can take. Other numbers: Java's
# `int`, in which Apache keeps most of them.
_YEARS_S: Final = 100 * 365 * 86_400
_MOST_BY_UNIT: Final = {
    "_ms": _YEARS_S * 1000,
    "_s": _YEARS_S,
    "_minutes": _YEARS_S // 60,
    "port": 65_535,
    "_port": 65_535,
    "_port_tls": 65_535,
}
_MOST: Final = 2**31 - 1


def setting(
    name: str,
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    parse: Callable[[str], Any] | None = None,
    aliases: tuple[str, ...] = (),
    least: float = 0,
    most: float | None = None,
    choices: Sequence[Any] = (),
    why: str = "",
    secret: bool = False,
) -> Any:
    """A field whose name in configuration files is *name* (Apache's own where Apache has the setting).

    *aliases* are older names of the setting. A number must be *least* to *most*; None: the limit of its unit. Where
    there are *choices*, the value, or each of several, is one of them; *why* says why there are no others. The value of
    a *secret* setting is shown to nobody (`shown_value`).
    """
    metadata: dict[str, Any] = {"name": name, "help": help, "parse": parse, "aliases": aliases, "secret": secret}
    metadata |= {"least": least, "most": most, "choices": choices, "why": why}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


class Group:
    """Some settings of a process, with their rules. A configuration is a dataclass that inherits from its groups.

    Each `problems` begins with `yield from super().problems()`, so that a configuration has the rules of all groups.
    """

    __slots__ = ()

    def problems(self) -> Iterator[str]:
        return iter(())


PROCESSES: Final = "magnetarProcesses"

AUTO: Final = 0
"""This number of processes stands for as many as the machine has cores."""


def processes_setting() -> Any:
    """The field with the number of processes of a service of brokers or bookies; AUTO: one for each core."""
    return setting(
        PROCESSES,
        1,
        help="processes of this service, each a broker or bookie (--processes); auto or 0: one for each core",
        parse=parse_processes,
        most=64,
    )


def loop_stall_setting() -> Any:
    """The field with the limit of one turn, in ms."""
    return setting(
        "loopStallWarnMs",
        250,
        help="a turn of the event loop that takes longer is a warning that names what ran; 0 = none is",
    )


def parse_processes(text: str) -> int:
    """The number of processes in a setting or option; `auto` and 0 are AUTO. Raises ValueError."""
    if text.strip() == "auto":
        return AUTO
    if not re.fullmatch(r"-?[0-9]{1,40}", text.strip()):
        raise ValueError("expected a number, 1 or more, or auto")
    return int(text)


def parse_properties(text: str, source: str) -> dict[str, str]:
    """The `name=value` lines of *text*. *source* names the file in errors.

    The last line of a name counts, as with Apache's servers; an earlier one with another value is a warning, since
    people may believe that one. Raises ConfigurationError for a line that is none.
    """
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    problems = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith(("#", "!")):
            continue
        name, separator, value = line.partition("=")
        if not separator:
            problems.append(f"{source} line {number}: {line!r} is not name=value")
            continue
        name, value = name.strip(), value.strip()
        if values.get(name, value) != value:
            log.warning(
                "%s line %d: %s stands in line %d already, with another value; this one counts",
                source, number, name, lines[name],
            )  # fmt: skip
        values[name], lines[name] = value, number
    if problems:
        raise ConfigurationError("\n".join(problems))
    return values


def load(
    kind: type[C],
    values: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    *,
    ignored: Mapping[str, str] | frozenset[str] = frozenset(),
    overrides: Mapping[str, str] | None = None,
    also: Callable[[Mapping[str, str]], Iterable[str]] = lambda merged: (),
) -> C:
    """Make a *kind* from setting names and texts; *environ* wins over *values*, *overrides* over both.

    *ignored* are Apache's settings without a meaning here; they are accepted so that Apache's file can be used. A
    mapping says what their values are: `number`, `flag`, or anything else for a text. *also*: problems of all values
    together.

    Raises ConfigurationError with every problem at once: unknown settings (with the nearest known one),
    texts that do not parse, and the problems that the value's own `problems()` yields.
    """
    assert dataclasses.is_dataclass(kind)
    fields = {field.metadata["name"]: field for field in dataclasses.fields(kind) if "name" in field.metadata}
    names = {alias: name for name, field in fields.items() for alias in field.metadata["aliases"]}
    sources = (values, from_environment(environ or {}), overrides or {})
    merged: dict[str, str] = {}
    for source in sources:
        _warn_of_two_names(source, names)
        merged |= {names[name]: value for name, value in source.items() if name in names}
        merged |= {name: value for name, value in source.items() if name not in names}
    known = fields.keys() | frozenset(ignored)
    problems = [unknown_setting(name, [*fields, *ignored]) for name in merged if name not in known]
    if isinstance(ignored, Mapping):
        problems += _ill_formed(merged, {name: kind for name, kind in ignored.items() if name not in fields})
    problems += also(merged)
    arguments: dict[str, Any] = {}
    hints = typing.get_type_hints(kind)
    for name, field in fields.items():
        if name not in merged:
            if field.default is dataclasses.MISSING:
                problems.append(f"{name} is not set ({field.metadata['help']})")
            continue
        try:
            arguments[field.name] = _parsed(field, hints[field.name], merged[name])
        except ValueError as error:
            problems.append(f"{name}={merged[name]}: {error}")
    if problems:
        raise ConfigurationError("\n".join(problems))
    config: C = kind(**arguments)
    check(config)
    return config


def check(value: Any) -> None:
    """Raises ConfigurationError with every problem of a configuration."""
    if problems := list(problems_of(value)):
        raise ConfigurationError("\n".join(problems))


def _warn_of_two_names(source: Mapping[str, str], names: Mapping[str, str]) -> None:
    """Of settings that *source* has under an older name and its own, with different values. *names*: older name → name.
    The newer name counts."""
    for alias, name in names.items():
        if source.get(alias) and source.get(name, source[alias]) != source[alias]:
            log.warning("%s=%s is an older name of %s, and %s counts", alias, source[alias], name, source[name])


def _ill_formed(values: Mapping[str, str], kinds: Mapping[str, str]) -> Iterator[str]:
    """The values of settings without a meaning here that are not of their kind: Apache's servers refuse them, too."""
    parsers = {"number": _parse_number, "flag": _parse_bool}
    for name, kind in kinds.items():
        text = values.get(name, "").strip()
        if text and kind in parsers:
            try:
                parsers[kind](text)
            except ValueError as error:
                yield f"{name}={text}: {error}"


def _parsed(field: "dataclasses.Field[Any]", hint: Any, text: str) -> Any:
    """Raises ValueError."""
    parse = field.metadata["parse"]
    if not text.strip() and hint in (int, float, int | float) and parse is None:
        return field.default  # as with Apache: a number that is left open has its default
    return (parse or _parser(hint))(text)


def problems_of(value: Any) -> Iterator[str]:
    """Values that a setting cannot have, and the `problems()` of *value* and of the dataclasses inside it."""
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if "name" in field.metadata:
            yield from _out_of_range(field, inner)
            yield from _not_among_choices(field, inner)
        elif dataclasses.is_dataclass(inner):
            yield from problems_of(inner)
    own = getattr(value, "problems", None)
    if own is not None:
        yield from own()


def _out_of_range(field: "dataclasses.Field[Any]", value: Any) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    least, most = field.metadata["least"], field.metadata["most"]
    if most is None:
        most = next((most for unit, most in _MOST_BY_UNIT.items() if field.name.endswith(unit)), _MOST)
    if not (math.isfinite(value) and least <= value <= most):
        yield f"{field.metadata['name']} ({value}) must be {least} to {most}"


def _not_among_choices(field: "dataclasses.Field[Any]", value: Any) -> Iterator[str]:
    choices, why = field.metadata["choices"], field.metadata["why"]
    is_several = isinstance(value, tuple)
    expected = f"expected {'some' if is_several else 'one'} of {', '.join(str(each) or 'nothing' for each in choices)}"
    for choice in value if is_several else (value,):
        if choices and choice not in choices:
            yield f"{field.metadata['name']}={choice}: {expected}{f'; {why}' if why else ''}"


HIDDEN: Final = "*****"
"""What is shown instead of a secret."""


def shown_value(field: "dataclasses.Field[Any]", value: Any) -> Any:
    """The value of a setting as people and other programs may see it."""
    return HIDDEN if field.metadata.get("secret") and value else value


def names_of(kind: type) -> frozenset[str]:
    """Every name of every setting of *kind*, older names included."""
    fields = [field.metadata for field in dataclasses.fields(kind) if "name" in field.metadata]
    return frozenset(name for field in fields for name in (field["name"], *field["aliases"]))


def kinds_of(kind: type) -> dict[str, str]:
    """Every name of every setting of *kind*, with the kind of its values, for a process that leaves them to another."""
    hints = typing.get_type_hints(kind)
    kinds: dict[str, str] = {}
    for field in dataclasses.fields(kind):
        if "name" in field.metadata:
            is_plain = field.metadata["parse"] is None
            hint = hints[field.name] if is_plain else str
            what = "flag" if hint is bool else "number" if hint in (int, float, int | float) else "text"
            kinds |= dict.fromkeys((field.metadata["name"], *field.metadata["aliases"]), what)
    return kinds


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings in *environ*."""
    return {
        key.removeprefix(ENVIRONMENT_PREFIX): value
        for key, value in environ.items()
        if key.startswith(ENVIRONMENT_PREFIX)
    }


def with_origin(problems: str, source: str, environ: Mapping[str, str]) -> str:
    """*problems*, one a line, each with the place where the first setting it names was given: the environment, or the
    file *source* if there is one."""
    given = from_environment(environ)

    def located(line: str) -> str:
        name = next((word for word in re.findall(r"\w+", line) if word in given), None)
        if name is not None:
            return f"{ENVIRONMENT_PREFIX}{name} in the environment: {line}"
        return f"{source}: {line}" if source else line

    return "\n".join(map(located, problems.splitlines()))


def unknown_setting(name: str, known: Iterable[str]) -> str:
    """The error text for an unknown setting; it names the nearest of *known*."""
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"unknown setting {name}" + (f"; did you mean {nearest[0]}?" if nearest else "")


def _parser(kind: Any) -> Callable[[str], Any]:
    if kind == int | float:  # whole with Apache, so it is shown as it was written
        return lambda text: _parse_int(text) if re.fullmatch(r"\s*[+-]?\d+\s*", text) else _parse_number(text)
    if isinstance(kind, types.UnionType):
        inner = _parser(next(member for member in kind.__args__ if member is not types.NoneType))
        return lambda text: inner(text) if text else None
    if typing.get_origin(kind) is tuple:
        inner = _parser(kind.__args__[0])
        return lambda text: tuple(inner(part.strip()) for part in text.split(",") if part.strip())
    if kind is bool:
        return _parse_bool
    if kind is int:
        return _parse_int
    if kind is float:
        return _parse_number
    assert kind is str, f"no text form for {kind}"
    return lambda text: text


def _parse_bool(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError("expected true or false")


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("expected a whole number") from None


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("expected a number") from None
