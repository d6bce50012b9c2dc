"""One program at both brokers, again where they differ, and shrunk: what a child process of `make differ` does."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, NamedTuple

from tests.differ.differences import Listed, listed
from tests.differ.events import Program
from tests.differ.normal import Difference, difference
from tests.differ.runner import run
from tests.differ.servers import Pair
from tests.differ.shrink import shrunk


class Finding(NamedTuple):
    """What became of a program. *kind* is "same", "listed", "once" (it did not come again) or "different"."""

    kind: str
    program: Program = ()
    difference: Difference | None = None
    reason: str = ""


class Comparison:
    """Runs programs in namespaces of their own, named after *name*."""

    def __init__(self, pair: Pair, name: str) -> None:
        self._pair = pair
        self._names = (f"public/{name}-{number}" for number in count())

    def once(self, program: Program) -> Difference | None:
        namespace = next(self._names)
        with ThreadPoolExecutor(2) as pool:
            apache, ours = pool.map(lambda address: run(program, address, namespace), self._pair)
        return difference(program, apache, ours)

    def finding(self, program: Program, *, is_shrunk: bool = True) -> Finding:
        first = self.once(program)
        if first is None:
            return Finding("same")
        if (known := listed(program, first)) is not None:
            return _known(program, first, known)
        program = program[: first.at + 1]
        again = self.once(program)
        if again is None or not is_alike(first, again):
            return Finding("once", program, first)
        if is_shrunk:
            program = shrunk(program, lambda less: self._shows(less, first))
            again = self.once(program) or again
        if (known := listed(program, again)) is not None:
            return _known(program, again, known)
        return Finding("different", program, again)

    def _shows(self, program: Program, first: Difference) -> bool:
        found = self.once(program)
        return found is not None and is_alike(first, found)


def _known(program: Program, found: Difference, known: Listed) -> Finding:
    return Finding("listed", program, found, known.name)


def is_alike(one: Difference, other: Difference) -> bool:
    """Of the same kind of event, and of the same kinds of outcomes."""
    return one.event.what == other.event.what and _kinds(one) == _kinds(other)


def _kinds(one: Difference) -> tuple[Any, ...]:
    """An error is its name; of other outcomes it counts what they are. Of two statistics, which members differ."""
    if isinstance(one.apache, dict) and isinstance(one.ours, dict):
        return tuple(name for name in one.apache if one.apache[name] != one.ours.get(name))
    return tuple(
        side if isinstance(side, str | int | None) and one.event.what != "terminate" else type(side).__name__
        for side in (one.apache, one.ours)
    )


def story(finding: Finding, name: str) -> list[str]:
    """The lines that say what differed."""
    found = finding.difference
    assert found is not None
    lines = [f"{name}: {finding.kind}"]
    lines += [f"    {one}" for one in finding.program]
    for brand, outcome in (("Apache", found.apache), ("ours", found.ours)):
        lines += [
            f"      {brand:7}{part}" for part in _parts(outcome, found.ours if brand == "Apache" else found.apache)
        ]
    if found.at != len(finding.program) - 1:
        lines.append(f"      at: {found.event}")
    return lines


def _parts(outcome: Any, other: Any) -> Sequence[str]:
    """Of two outcomes that are alike for the most part, what differs."""
    if isinstance(outcome, dict) and isinstance(other, dict):
        return [f"{name}: {value}" for name, value in outcome.items() if other.get(name) != value]
    if isinstance(outcome, list) and isinstance(other, list) and len(outcome) > 3:
        return [f"{len(outcome)}: " + ", ".join(str(one) for one in outcome if one not in other)]
    return [str(outcome)]
