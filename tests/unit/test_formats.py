"""The drawings of docs/formats are those of the modules that read and write the format."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted((ROOT / "docs" / "formats").glob("*.md"))
ROOMS: Final = ("bookie", "broker", "managed_ledger", "magnetar_core")

_PART: Final = re.compile(r"^## .*?^Read and written by `(\S+)`\.$", re.MULTILINE | re.DOTALL)
_DRAWING: Final = re.compile(r"^```text\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
# A box with the width of a field in it.
_IS_FORMAT: Final = re.compile(r"│.*\(\d+\).*│")

PARTS: Final = [(page, found[1], found[0]) for page in PAGES for found in _PART.finditer(page.read_text())]


def docstring_of(module: Path) -> str:
    return ast.get_docstring(ast.parse(module.read_text())) or ""


@pytest.mark.parametrize(("page", "module", "part"), PARTS, ids=[module for _, module, _ in PARTS])
def test_a_drawing_is_that_of_its_module(page: Path, module: str, part: str) -> None:
    lines = [line.strip() for line in docstring_of(ROOT / module).splitlines()]
    drawings = _DRAWING.findall(part)
    assert drawings, f"{page.name} draws nothing of {module}"
    for drawing in drawings:
        missing = [line for line in drawing.splitlines() if line.strip() and line.strip() not in lines]
        assert missing == []


def test_every_module_that_draws_a_format_is_on_a_page() -> None:
    drawn = {module for _, module, _ in PARTS}
    modules = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    drawing = {str(path.relative_to(ROOT)) for path in modules if _IS_FORMAT.search(docstring_of(path))}
    assert len(drawing) > 5
    assert drawing <= drawn
