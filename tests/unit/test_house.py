"""The layout of the product: small folders, and each says what is in it. What may import what: `.importlinter`."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("magnetar", "magnetar_core", "broker", "managed_ledger", "bookie", "autorecovery", "connectors")

# A reader keeps about so many names in mind.
FILES_MAX = 12


def folders() -> list[str]:
    paths = (path for package in PRODUCT for path in sorted((ROOT / package).rglob("__init__.py")))
    return [str(path.parent.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("folder", folders())
def test_a_folder_is_small_and_says_what_is_in_it(folder: str) -> None:
    files = [path.name for path in (ROOT / folder).glob("*.py") if not path.name.endswith(("__init__.py", "_pb2.py"))]
    assert len(files) <= FILES_MAX, "cut the folder by what its files are about"
    assert ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text())), "one sentence, for newcomers"


def test_each_file_of_the_product_is_in_a_package() -> None:
    """A folder without `__init__.py` would be imported all the same, and be in no contract."""
    known = set(folders())
    for package in PRODUCT:
        for path in (ROOT / package).rglob("*.py"):
            assert str(path.parent.relative_to(ROOT)) in known, path
