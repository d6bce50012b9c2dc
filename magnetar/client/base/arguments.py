"""What public calls are given: wrong types and empty names are refused by the argument's name. No IO."""

from collections.abc import Mapping
from typing import Any, Final

# What a program writes that means "for ever" must not be more than event loops take.
_LONG_S: Final = 1e9


def wrong(name: str, value: object, taken: str) -> TypeError:
    """The error for an argument of a wrong type; *taken* says what is taken."""
    return TypeError(f"{name} is {type(value).__name__}; it takes {taken}")


def check_text(name: str, value: object, *, may_be_empty: bool = False) -> None:
    """Raises TypeError, ValueError."""
    if not isinstance(value, str):
        raise wrong(name, value, "str")
    if not value and not may_be_empty:
        raise ValueError(f"{name} is empty; it takes a name")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} ({value!r}) has a character that is none: it cannot be written as UTF-8") from None


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Raises TypeError, ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(name, value, "int")
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; it takes {least} to {most}")


def check_seconds(name: str, value: object, *, may_be_none: bool = False, may_be_zero: bool = False) -> None:
    """Raises TypeError, ValueError."""
    if value is None and may_be_none:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong(name, value, "seconds, as int or float" + (", or None" if may_be_none else ""))
    if not 0 <= value <= _LONG_S or not (value or may_be_zero):
        raise ValueError(f"{name} is {value}; it takes seconds {'from 0 on' if may_be_zero else 'above 0'}, up to 1e9")


def check_flag(name: str, value: object) -> None:
    """Raises TypeError."""
    if not isinstance(value, bool):
        raise wrong(name, value, "True or False")


def check_properties(name: str, value: object) -> None:
    """Raises TypeError, ValueError."""
    if not isinstance(value, Mapping):
        raise wrong(name, value, "a mapping of str to str")
    for key, text in value.items():
        if not isinstance(key, str):
            raise wrong(f"a key of {name} ({key!r})", key, "str")
        if not isinstance(text, str):
            raise wrong(f"{name}[{key!r}]", text, "str")
        check_text(f"a key of {name}", key, may_be_empty=True)
        check_text(f"{name}[{key!r}]", text, may_be_empty=True)


def check_instance(name: str, value: Any, kind: type, taken: str) -> None:
    """Raises TypeError unless *value* is a *kind* or None."""
    if value is not None and not isinstance(value, kind):
        raise wrong(name, value, taken)
