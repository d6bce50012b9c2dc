"""Parsing of JSON that came from outside. No IO.

Python's parser accepts NaN and Infinity, which other parsers refuse, and makes 1e999 infinite. On deep nesting it
raises an error that is not a ValueError, and a value it just accepts may be too deep to be written again. It makes
integers of thousands of digits, which fit into nothing that they could mean.
"""

import json
import math
import re
from typing import Any, Final, NoReturn

# Schemas nest some ten levels, policies five. The limit is far below that of Python's parser and writer.
NESTING_MAX: Final = 100

# Numbers of 64 bits have 20 digits. What is read becomes a float without an error.
DIGITS_MAX: Final = 100

_LONG: Final = re.compile(rf"[0-9]{{{DIGITS_MAX + 1}}}")
_LONG_BYTES: Final = re.compile(_LONG.pattern.encode())


def parse_json(text: str | bytes) -> Any:
    """The value. Raises ValueError."""
    try:
        # Where no run of digits is too long, which is nearly always, integers are made without a look at each.
        is_long = (_LONG if isinstance(text, str) else _LONG_BYTES).search(text) is not None  # type: ignore[arg-type]
        value = json.loads(
            text, parse_constant=_refuse, parse_float=_parse_finite, parse_int=_integer if is_long else None
        )
    except RecursionError:
        raise ValueError(f"nested deeper than {NESTING_MAX} levels") from None
    openings = (text.count("{") + text.count("[")) if isinstance(text, str) else text.count(b"{") + text.count(b"[")
    if openings > NESTING_MAX and _is_deep(value):
        raise ValueError(f"nested deeper than {NESTING_MAX} levels")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number in JSON")


def _parse_finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:20]}… is too large")
    return number


def _integer(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise ValueError(f"a number has {len(text)} digits, at most {DIGITS_MAX} are read")
    return int(text)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(NESTING_MAX):
        level = [
            item
            for container in level
            if isinstance(container, dict | list)
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True
