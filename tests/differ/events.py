"""Events, as values and as lines of text. A program is a list of them.

    t0 create partitions=2
    p0 produce topic="t0" batching=5
    p0 send first=0 count=3 keys=2

Who it is about, what happens, and what is given, as JSON. A topic is `t0`, its subscription `t0/s0`, the namespace `n`;
producers are `p0`, consumers `c0`, readers `r0`, views `v0`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Event(NamedTuple):
    """One thing that a program does. *given* has the options that are not the usual ones, in their order."""

    who: str
    what: str
    given: tuple[tuple[str, Any], ...] = ()

    def get(self, name: str, usual: Any = None) -> Any:
        return dict(self.given).get(name, usual)

    def __str__(self) -> str:
        return " ".join([self.who, self.what, *(f"{name}={json.dumps(value)}" for name, value in self.given)])


Program = tuple[Event, ...]


def event(who: str, what: str, **given: Any) -> Event:
    return Event(who, what, tuple(given.items()))


_OPTION = re.compile(r" (\w+)=")


def event_of(line: str) -> Event:
    """The event of such a line. Raises ValueError."""
    who, what, *_ = line.split(" ", 2)
    rest, given = line[len(who) + len(what) + 1 :], {}
    while rest:
        found = _OPTION.match(rest)
        if found is None:
            raise ValueError(f"no option begins at {rest!r} of {line!r}")
        value, end = json.JSONDecoder().raw_decode(rest, found.end())
        given[found[1]] = value
        rest = rest[end:]
    return event(who, what, **given)


def text_of(program: Iterable[Event]) -> str:
    return "".join(f"{one}\n" for one in program)


def program_of(lines: Sequence[str]) -> Program:
    """Empty lines and those that begin with # say nothing."""
    return tuple(event_of(line.strip()) for line in lines if line.strip() and not line.startswith("#"))
