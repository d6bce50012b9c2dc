"""JSON that came from somebody else. No IO.

Python's own parser takes NaN and Infinity, which no other would read again, and gives up on deep nesting with an error
that is no ValueError; what it has just taken may be too deep to be written.
"""

import json
from typing import Any, Final, NoReturn

# Schemas nest some ten levels, policies five. Far below what Python's parser and writer can take.
NESTING_MAX: Final = 100


def parse_json(text: str | bytes) -> Any:
    """The value. Raises ValueError."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"nested deeper than {NESTING_MAX} levels") from None
    openings = (text.count("{") + text.count("[")) if isinstance(text, str) else text.count(b"{") + text.count(b"[")
    if openings > NESTING_MAX and _is_deep(value):
        raise ValueError(f"nested deeper than {NESTING_MAX} levels")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number in JSON")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(NESTING_MAX):
        level = [
            item
            for one in level
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True
