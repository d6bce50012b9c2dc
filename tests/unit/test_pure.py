"""What is called pure is pure: the modules that say "No IO" are those of the contract, and they can be stepped."""

import ast
import configparser
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("autorecovery", "bookie", "broker", "connectors", "magnetar", "magnetar_core", "managed_ledger")

AWAITING = {
    "broker.binary.admission.guard": "asks by a port who may do what",
    "broker.binary.admission.handshake": "asks by a port who it is",
    "broker.binary.answers": "runs the coroutines of its neighbours and answers with their errors",
    "broker.binary.connection": "the port of its commands",
    "broker.binary.consumers": "waits for topics by a port",
    "broker.binary.lookups": "waits for owners by a port",
    "broker.binary.producers": "waits for topics by a port",
    "broker.binary.watches": "waits for lists of topics by a port",
    "broker.topic.compaction.compacted_view": "reads by a port what compaction kept",
    "broker.topic.reading.positions": "reads entries by a port",
    "broker.topic.reading.subscription": "waits for its cursor when it is moved",
    "broker.records.json_records": "reads and changes records in a store that it is given",
    "connectors.spark.plan.times": "reads entries by a port",
    "magnetar_core.bookkeeper.metadata.stores.store": "one function over the port that it declares",
    "managed_ledger.reading.entry_index": "reads the properties of cursors by a port",
}
"""Modules that do no IO and wait for a port all the same, with the reason. The list only gets shorter."""


def named(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def contract() -> set[str]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    return set(parser["importlinter:contract:pure"]["source_modules"].split())


def coroutines(node: ast.AST) -> Iterator[str]:
    """Names of functions that wait, but for those of a Protocol, which have no body."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in child.bases):
            continue
        if isinstance(child, ast.AsyncFunctionDef):
            yield child.name
        yield from coroutines(child)


def is_in(name: str, names: set[str]) -> bool:
    """Whether a module or its package is among *names*."""
    return name in names or name.startswith(tuple(f"{listed}." for listed in names))


class Module(NamedTuple):
    says_no_io: bool
    coroutines: list[str]


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    def read(path: Path) -> Module:
        tree = ast.parse(path.read_text())
        return Module("No IO" in (ast.get_docstring(tree) or ""), list(coroutines(tree)))

    return {named(path): read(path) for path in sources()}


def test_the_contract_has_the_modules_that_say_no_io_and_no_others(modules: dict[str, Module]) -> None:
    listed = contract()
    said = {name for name, module in modules.items() if module.says_no_io}
    unchecked = sorted(name for name in said if not is_in(name, listed))
    assert unchecked == [], "say that they do no IO, and nobody checks it: put them into .importlinter"
    assert sorted(listed - said) == [], "are checked for IO and do not say it: write 'No IO.' into their docstring"


def test_what_does_no_io_has_no_coroutines(modules: dict[str, Module]) -> None:
    listed = contract()
    found = {name: module.coroutines for name, module in modules.items() if module.coroutines and is_in(name, listed)}
    assert {name: names for name, names in found.items() if name not in AWAITING} == {}, "cannot be stepped"
    assert sorted(AWAITING.keys() - found.keys()) == [], "have no coroutines any more: take them off the list"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("class A(Protocol):\n async def a(self) -> None: ...\n", []),
        ("class A(Protocol[T]):\n async def a(self) -> None: ...\nasync def b(): pass\n", ["b"]),
        ("class A:\n def a(self):\n  async def c(): pass\n", ["c"]),
    ],
)
def test_coroutines_are_seen_wherever_they_stand(source: str, names: list[str]) -> None:
    assert list(coroutines(ast.parse(source))) == names
