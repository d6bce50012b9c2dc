"""Which messages `magnetar read` and `tail` show: the conditions of `--where`. No IO."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

HELP: Final = (
    "Show only messages that fit: key=K, value~EXPRESSION, value.FIELD=V (with a schema), or NAME=V for a property. "
    "May be given more than once: all must fit."
)

_CONDITION: Final = re.compile(r"([^=~!]+)(=|~|!=|!~)(.*)", re.DOTALL)


class Facts(NamedTuple):
    """What is known of a message."""

    key: str
    text: str
    """Its payload as text; what is not UTF-8 is replaced."""
    properties: Mapping[str, str]
    value: Any = None
    """Decoded with the topic's schema; None: there is none."""


Fits = Callable[[Facts], bool]


class BadCondition(ValueError):
    """A condition that cannot be read; the text says what is expected."""


def fits_all(conditions: Iterable[str]) -> Fits:
    """A predicate for all *conditions*: `NAME=V` and `NAME!=V` compare, `NAME~E` and `NAME!~E` look for a regular
    expression; what is not there fits no `=` and no `~`. Raises BadCondition."""
    parsed = [_parse(condition) for condition in conditions]
    return lambda facts: all(fits(facts) for fits in parsed)


def _parse(condition: str) -> Fits:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise BadCondition(f"{condition}: expected NAME=VALUE, NAME~EXPRESSION, NAME!=VALUE or NAME!~EXPRESSION")
    name, sign, wanted = match.groups()
    compare: Callable[[str], object]
    if sign.endswith("~"):
        try:
            compare = re.compile(wanted).search
        except re.error as error:
            raise BadCondition(f"{condition}: {error}") from None
    else:
        compare = wanted.__eq__
    is_wanted = not sign.startswith("!")

    def fits(facts: Facts) -> bool:
        text = _text_of(facts, name)
        return (text is not None and bool(compare(text))) is is_wanted

    return fits


def _text_of(facts: Facts, name: str) -> str | None:
    if name == "key":
        return facts.key
    if name == "value":
        return facts.text
    if not name.startswith("value."):
        return facts.properties.get(name)
    value = facts.value
    for part in name.split(".")[1:]:
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return {True: "true", False: "false", None: "null"}.get(value, str(value)) if not _is_many(value) else None


def _is_many(value: Any) -> bool:
    return isinstance(value, Mapping | list)
