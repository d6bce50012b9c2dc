"""The table of errors in docs/spark.md, and the texts that the code raises.

In the table and in the texts `…` stands for anything. A text of the code is in the table if what a row says stands in
it; a text without words of its own ("…: …") passes on another error.
"""

import ast
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from magnetar_core.runtime.types import MagnetarError

ROOT: Final = Path(__file__).parents[5]
PAGE: Final = ROOT / "docs/spark.md"
_CODE: Final = ROOT / "connectors/spark"

Case = Callable[[Path, pytest.MonkeyPatch], Awaitable[list[str]]]

CASES: Final[dict[tuple[str, ...], Case]] = {}
"""What rows say → raises these errors, does what the rows advise, and returns the errors' texts in the same order."""


def case(*says: str) -> Callable[[Case], Case]:
    """Registers what raises the errors of these rows."""

    def registered(raises: Case) -> Case:
        CASES[says] = raises
        return raises

    return registered


@contextmanager
def refused() -> Iterator[list[str]]:
    """Takes the text of the error that the block raises."""
    texts: list[str] = []
    with pytest.raises(MagnetarError) as caught:
        yield texts
    texts.append(str(caught.value))


def rows() -> list[str]:
    """What the first cells of the table say; a cell may have several texts."""
    section = PAGE.read_text().partition("## When something is wrong\n")[2].partition("What Spark itself says")[0]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]
    return [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]


def pattern(says: str) -> re.Pattern[str]:
    """Finds what a row says in a text."""
    return re.compile(".*".join(map(re.escape, says.split("…"))), re.DOTALL)


# ------------------------------------------------------------------------------------------ texts of the code


class Raised(NamedTuple):
    """A text that the code raises."""

    place: str
    error: str
    """Its class; empty for one of several problems that are raised together."""
    text: str

    @property
    def has_words(self) -> bool:
        return len(re.findall(r"[A-Za-z]{2,}", self.text)) > 1


INSIDE: Final = {
    ("options", "ValueError"): "…=…: expected …",
    ("task", "Corruption"): "…, entry …: …. To go on set mode=PERMISSIVE",
    ("task", "ValueError"): "…, entry …: …. To go on set mode=PERMISSIVE",
    ("task", "OverflowError"): "…, entry …: …. To go on set mode=PERMISSIVE",
    ("batches", "Corruption"): "…, entry …: …. To go on set mode=PERMISSIVE",
    ("values", "Corruption"): "…, entry …: …. To go on set mode=PERMISSIVE",
    ("values", "ValueError"): "…, entry …: …. To go on set mode=PERMISSIVE",
    ("values", "IncompatibleSchema"): "…; read it with valueFormat=binary",
    ("stream", "ValueError"): "… of an offset in the checkpoint cannot be read",
    ("client_access.py", "ValueError"): "pulsar.client.… expected …",
}
"""(part of the source, class) → the row of the error that holds the text of such a one as its reason."""


def raised() -> list[Raised]:
    """Every text that the source and the sink raise, or gather as one of several problems."""
    return [one for path in sorted(_CODE.rglob("*.py")) for one in _raised_in(path)]


def _raised_in(path: Path) -> Iterator[Raised]:
    module = ast.parse(path.read_text())
    constants = _known(module.body, {})
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        known = _known(ast.walk(function), constants)
        gathers = function.name.strip("_") in ("contradictions", "client_problems", "why_not", "why_not_here")
        for node in _own_nodes(function):
            error, texts = "", []
            match node:
                case ast.Raise(exc=ast.Call(func=made, args=[text, *_])):
                    error, texts = ast.unparse(made), [text]
                case ast.Return(value=ast.Call(func=made, args=[text, *_])):  # made for the caller, who raises it
                    error = ast.unparse(made)
                    texts = [text] if error.endswith(("Error", "Missing")) else []
                case ast.Call(func=made, args=[text]) if ast.unparse(made) == "problems.append":
                    texts = [text]
                case ast.AugAssign(target=ast.Name(id="problems"), value=value):
                    texts = list(_texts_in(value))
                case ast.Yield(value=ast.AST() as value) | ast.Return(value=ast.AST() as value) if gathers:
                    texts = list(_texts_in(value))
            for text in texts:
                yield Raised(f"{path.relative_to(_CODE)}:{text.lineno}", error, _text(text, known))


def _known(nodes: Iterable[ast.AST], known: dict[str, str]) -> dict[str, str]:
    """The texts that names stand for."""
    texts = dict(known)
    for node in nodes:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.AST() as value)
            ):
                texts[name] = _text(value, known)
            case ast.AugAssign(target=ast.Name(id=name)) if name in texts:
                texts[name] += "…"
    return texts


def _own_nodes(function: ast.AST) -> Iterator[Any]:
    """All nodes of a function but those of functions inside of it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from _own_nodes(node)


def _texts_in(node: ast.AST) -> Iterator[ast.expr]:
    """The texts of an expression, each whole."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
        return
    for inner in ast.iter_child_nodes(node):
        yield from _texts_in(inner)


def _text(node: ast.AST, known: dict[str, str]) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, known) for part in parts)
        case ast.FormattedValue(value=ast.Name(id=name)) if name in known:
            return known[name]
        case ast.Name(id=name) if name in known:
            return known[name]
    return "…"
