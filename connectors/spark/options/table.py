"""Options as rows of a table: how each is called, what its text means, and where it has a meaning. No IO.

Spark gives all names in lower case and all values as text. A misspelt option is the commonest error of users, so an
unknown one is refused with the nearest name.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from magnetar_core.runtime.types import ConfigurationError

# Options with which other connectors reach a broker. Accepted, so that their jobs run here; reading needs no broker.
BROKER: Final = ("admin.url", "adminUrl")
BROKER_PREFIXES: Final = ("pulsar.client.", "pulsar.admin.", "pulsar.reader.", "pulsar.producer.")

# Properties that Spark keeps of every table (`CREATE TABLE … USING magnetar`). They come beside the options, and each
# option comes a second time with `option.` in front.
TABLE_PROPERTIES: Final = frozenset(
    {"provider", "owner", "comment", "location", "external", "is_managed_location", "collation"}
)
_AGAIN: Final = "option."

_SIZE: Final = re.compile(r"([0-9]{1,15})\s*([kmg]?)b?", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_DURATION: Final = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h)", re.IGNORECASE)

Parse = Callable[[str], Any]
"""From the text of an option to its value; raises ValueError with what was expected, or ConfigurationError."""


class Option(NamedTuple):
    """One option."""

    name: str
    """The name as it is documented."""
    field: str = ""
    """The field that it sets, if that depends on nothing else; empty: a rule reads the option."""
    parse: Parse = str
    also: tuple[str, ...] = ()
    """Other accepted names, those of other connectors."""


# ------------------------------------------------------------------------------------------- texts


def flag(text: str) -> bool:
    """Raises ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def number(text: str) -> int:
    """At least 1. Raises ValueError."""
    if not _NUMBER.fullmatch(text) or int(text) < 1:
        raise ValueError("expected a number of at least 1")
    return int(text)


def size(text: str) -> int:
    """Bytes of a text such as 128m. Raises ValueError."""
    matched = _SIZE.fullmatch(text)
    if matched is None or int(matched[1]) == 0:
        raise ValueError("expected a size such as 128m")
    return int(matched[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[matched[2].lower()]


def duration(text: str) -> int:
    """Milliseconds of a text such as 10m. Raises ValueError."""
    matched = _DURATION.fullmatch(text)
    if matched is None:
        raise ValueError("expected a time such as 10m, 30s or 1h")
    return int(matched[1]) * {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}[matched[2].lower()]


def names(text: str) -> tuple[str, ...]:
    """The names in a text with commas between them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def bounded(parse: Parse, low: int, high: int, expected: str) -> Parse:
    """Takes what *parse* takes, within both bounds; *expected* names them."""

    def checked(text: str) -> int:
        value: int = parse(text)
        if not low <= value <= high:
            raise ValueError(f"expected {expected}")
        return value

    return checked


def one_of(*choices: str) -> Parse:
    """Takes one of the names, in upper or lower case."""

    def chosen(text: str) -> str:
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise ValueError(f"expected {', '.join(choices[:-1])} or {choices[-1]}")

    return chosen


# ------------------------------------------------------------------------------------------ options


def known_names(table: Iterable[Option]) -> dict[str, str]:
    """Each accepted name, in lower case → the documented one."""
    return {known.lower(): option.name for option in table for known in (option.name, *option.also)}


def read_names(
    table: Collection[Option],
    options: Mapping[str, str],
    problems: list[str],
    why_not: Callable[[str, str], str | None] = lambda lowered, key: None,
) -> dict[str, str]:
    """Values by documented name, without surrounding spaces.

    *why_not*, asked with an unknown name in lower case and as it was written, says what is wrong with it: empty if
    nothing is, None if that is not known.
    """
    known = known_names(table)
    given: dict[str, str] = {}
    sources: dict[str, str] = {}
    for key, value in without_table_properties(options).items():
        lowered = key.lower()
        if lowered in known:
            name = known[lowered]
            if name in given and given[name] != value.strip():
                problems.append(f"{sources[name]} and {key} mean the same and differ")
            given[name], sources[name] = value.strip(), key
        elif (why := why_not(lowered, key)) is not None:
            problems += [why] if why else []
        else:
            nearest = difflib.get_close_matches(lowered, known, n=1)
            every = ", ".join(option.name for option in table)
            hint = f"; did you mean {known[nearest[0]]}?" if nearest else f"; known are {every}"
            problems.append(f"unknown option {key}{hint}")
    return given


def read_values(table: Iterable[Option], given: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    """What the options that set a field set it to."""
    values: dict[str, Any] = {}
    for option in table:
        if option.field and option.name in given:
            try:
                values[option.field] = option.parse(given[option.name])
            except ValueError as error:
                problems.append(f"{option.name}={given[option.name]}: {error}")
            except ConfigurationError as error:  # it names the option itself
                problems.append(str(error))
    return values


def without_table_properties(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a table, or of a read without one."""
    lowered = {key.lower() for key in options}
    own = {}
    for key, value in options.items():
        if key.lower().startswith(_AGAIN):
            key = key[len(_AGAIN) :]
            if key.lower() in lowered:
                continue
        elif key.lower() in TABLE_PROPERTIES and "provider" in lowered:
            continue
        own[key] = value
    return own


CLIENT: Final = "pulsar.client."
CLIENT_NAMES: Final = (
    "authPluginClassName", "authParams", "tlsTrustCertsFilePath", "tlsHostnameVerificationEnable",
    "tlsAllowInsecureConnection", "operationTimeoutMs",
)  # fmt: skip


def client_problems(options: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the names of `pulsar.client.…`, where a broker is needed."""
    given = {key.lower().removeprefix(CLIENT): key for key in options if key.lower().startswith(CLIENT)}
    known = {name.lower() for name in CLIENT_NAMES}
    for name, key in given.items():
        if name not in known:
            supported = ", ".join(CLIENT + client_name for client_name in CLIENT_NAMES)
            yield f"option {key} is not supported; there are {supported}"
    if "authparams" in given and "authpluginclassname" not in given:
        yield f"{CLIENT}authParams belongs to {CLIENT}authPluginClassName, which is not given"


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of the official client, `pulsar.client.…` in lower case."""
    return {key.lower(): value for key, value in options.items() if key.lower().startswith(CLIENT)}
