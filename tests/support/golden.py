"""Golden tests: each is given recorded files, declares how it checks them, and reports row by row which fit.

    @golden("wire/bkraw-*.decoded.jsonl", beside=(".jsonl",), how={DECODES}, compared="every field of every frame")
    def test_…(report: Report) -> None:
        for number, row in …:
            with report.row(number):        # a failure in here is a difference of this row
                assert …

Rules:

1. A golden test runs once for each file of its pattern and reads that file and the ones beside it; a file that it did
   not open fails the test.
2. A row that differs fails the test, unless KNOWN_DIFFERENCES lists it with a reason.
3. A row that is listed and fits fails the test as well: the list says what is true today.
"""

import base64
import functools
import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent / "vectors"

DECODES: Final = "decodes"
"""The bytes are read, and the values are the recorded ones."""
ENCODES: Final = "encodes back"
"""The values make the same bytes again; where protobuf, JSON or text leave a choice, an equal value."""
REPLAYS: Final = "replays"
"""What the client sent is sent to our server, and each answer is compared."""
OPENS: Final = "opens"
"""Our storage works on the recorded files."""
REFUSES: Final = "refuses"
"""Our server does not start on them, and says why."""

# How many rows a failure shows: enough to see what they have in common.
SHOWN_MAX: Final = 20

_opened: set[str] = set()


def path_of(name: str) -> Path:
    """Where *name* (below tests/vectors) is; the file then counts as read."""
    _opened.add(name)
    return ROOT / name


@functools.lru_cache(maxsize=64)
def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def text(name: str) -> str:
    _opened.add(name)
    return _text(name)


def load(name: str) -> Any:
    """The JSON of a vector."""
    return json.loads(text(name))


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a .jsonl file."""
    return [json.loads(line) for line in text(name).splitlines()]


def b64(data: str) -> bytes:
    return base64.b64decode(data)


def names(pattern: str) -> list[str]:
    """Files below tests/vectors that match, sorted."""
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern) if path.is_file())


def beside(name: str, other: str) -> str:
    """The file that belongs to *name*: another name in its folder, or with a leading dot another ending."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/{last.partition('.')[0]}{other}" if other.startswith(".") else f"{folder}/{other}"


class Report:
    """What one test found in one file."""

    def __init__(self, vector: str) -> None:
        self.vector = vector
        self.fine: set[str] = set()
        self.different: dict[str, str] = {}

    @contextmanager
    def row(self, step: object) -> Iterator[None]:
        """Whatever fails inside is a difference of this row."""
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            self.differs(step, f"{type(error).__name__}: {error}")
        else:
            self.fine.add(str(step))

    def differs(self, step: object, how: str) -> None:
        self.different.setdefault(str(step), how)

    def settle(self, known: Mapping[str, str]) -> None:
        """Fail for rows that differ and are not listed, and for rows that are listed and do not differ."""
        lines = [
            f"{self.vector}:{step}: {how}"
            for step, how in self.different.items()
            if not any(is_listed(key, self.vector, step) for key in known)
        ]
        for key in known:
            if not concerns(key, self.vector):
                continue
            if ":" not in key:
                if not self.different:
                    lines.append(f"{self.vector} is listed as a known difference ({key!r}) and fits: take it off")
                continue
            steps = self.fine | self.different.keys()
            if key.startswith(f"{self.vector}:") and not any(is_listed(key, self.vector, step) for step in steps):
                lines.append(f"{key!r} is listed as a known difference and names no row")
            lines += [
                f"{self.vector}:{step} is listed as a known difference ({key!r}) and fits: take it off"
                for step in sorted(self.fine - self.different.keys())
                if is_listed(key, self.vector, step)
            ]
        if lines:
            more = [f"… and {len(lines) - SHOWN_MAX} more"] if len(lines) > SHOWN_MAX else []
            pytest.fail("\n".join(["", *lines[:SHOWN_MAX], *more]), pytrace=False)


def concerns(key: str, vector: str) -> bool:
    """Whether a line of the list is about the file *vector*. Its form is `file` or `file:row`, both with * and ?."""
    return fnmatchcase(vector, key.partition(":")[0])


def is_listed(key: str, vector: str, step: str) -> bool:
    file, colon, row = key.partition(":")
    return fnmatchcase(vector, file) and (not colon or fnmatchcase(step, row))


@dataclass(frozen=True, slots=True)
class Coverage:
    """What one golden test does, and with which files."""

    test: str
    pattern: str
    files: tuple[str, ...]
    beside: tuple[str, ...]
    how: frozenset[str]
    compared: str

    def all_files(self) -> set[str]:
        return set(self.files).union(beside(file, other) for file in self.files for other in self.beside)


COVERAGE: Final[list[Coverage]] = []
"""Filled when the modules of tests/golden are imported."""


def golden(
    pattern: str,
    *,
    how: Collection[str],
    compared: str,
    beside_it: Collection[str] = (),
    without: Collection[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test for each file that matches *pattern* and none of *without*.

    *how* is made of the words above; *compared* tells in a sentence what is compared and what is left aside.
    """
    files = tuple(name for name in names(pattern) if not any(fnmatchcase(name, other) for other in without))
    assert files, f"no vectors match {pattern}"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        from tests.golden.known_differences import KNOWN_DIFFERENCES

        COVERAGE.append(
            Coverage(f"{test.__module__}.{test.__name__}", pattern, files, tuple(beside_it), frozenset(how), compared)
        )

        @functools.wraps(test)
        def checked(vector: str, **fixtures: Any) -> None:
            _opened.clear()
            report = Report(vector)
            test(report, **fixtures)
            unread = {vector, *(beside(vector, other) for other in beside_it)} - _opened
            assert not unread, f"claimed and not read: {sorted(unread)}"
            assert report.fine or report.different, f"{vector}: nothing was compared"
            report.settle(KNOWN_DIFFERENCES.get(test.__name__, {}))

        signature = inspect.signature(test)
        parameters = [p for name, p in signature.parameters.items() if name != "report"]
        vector = inspect.Parameter("vector", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str)
        checked.__signature__ = signature.replace(parameters=[vector, *parameters])  # type: ignore[attr-defined]
        made: Callable[..., None] = pytest.mark.parametrize("vector", files)(checked)
        return made

    return decorate
