"""What a program finds under `magnetar`: help, examples, and imports that no module of its own gets in the way of."""

import ast
import asyncio
import contextlib
import inspect
import io
import itertools
import pydoc
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import magnetar
from broker.grpc.service import GrpcServer
from tests.unit.broker.conftest import world
from tests.unit.broker.grpc.conftest import door

__all__ = ["door", "world"]

ROOT = Path(__file__).parents[4]

CLASSES = sorted(name for name in magnetar.__all__ if inspect.isclass(getattr(magnetar, name)))
# These go on for ever, as workers do.
ENDLESS = ("AsyncConsumer", "Consumer", "Retry")


def example(of: Any) -> str:
    """The program in a docstring."""
    _, found, text = inspect.getdoc(of).partition("Example:\n")  # type: ignore[union-attr]
    assert found, f"{of} has no example"
    indented = itertools.takewhile(lambda line: not line or line.startswith("    "), text.splitlines())
    return textwrap.dedent("\n".join(indented))


def test_help_shows_the_classes() -> None:
    text = pydoc.plain(pydoc.render_doc(magnetar))
    for name in CLASSES:
        assert f"class {name}" in text, name
    assert "send_async" in text
    assert set(magnetar.__all__) <= set(dir(magnetar))


def test_there_are_classes() -> None:
    assert {"Client", "AsyncClient", "Producer", "Consumer", "Message", "MessageId", "Avro"} <= set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_each_public_class_has_an_example_that_can_be_compiled(name: str) -> None:
    if name == "MessageId":
        assert ">>> MessageId.parse" in (magnetar.MessageId.__doc__ or "")
        return
    ast.parse(f"async def program():\n{textwrap.indent(example(getattr(magnetar, name)), '    ')}")


@pytest.mark.parametrize("name", ["magnetar", *(name for name in CLASSES if name not in (*ENDLESS, "MessageId"))])
async def test_each_example_runs(door: GrpcServer, name: str) -> None:
    address = f"127.0.0.1:{door.port}"
    of = magnetar if name == "magnetar" else getattr(magnetar, name)
    text = example(of).replace("localhost:6648", address)
    scope: dict[str, Any] = {"magnetar": magnetar, "dataclass": dataclass}

    def blocking() -> None:
        with (
            magnetar.Client(address, operation_timeout_s=30) as made,
            made.consumer("orders", "s", from_earliest=True) as consumer,
            made.producer("orders") as producer,
        ):
            producer.send(b"x", key="apple")
            made.producer("prices").send(b"3", key="apple")
            exec(text, scope | {"client": made, "consumer": consumer, "producer": producer})

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if "await" not in text and "async" not in text.replace("send_async", ""):
            await asyncio.wait_for(asyncio.to_thread(blocking), 20)
            return
        async with magnetar.AsyncClient(address, operation_timeout_s=30) as made:
            await made.producer("orders").send(b"x", key="apple")
            await made.producer("prices").send(b"3", key="apple")
            scope["client"] = made
            exec(f"async def program():\n{textwrap.indent(text, '    ')}", scope)
            await asyncio.wait_for(scope["program"](), 20)


SHADOWED = ("managed_ledger", "broker", "bookie", "autorecovery", "connectors", "pulsar", "values", "stream", "retry")


def test_modules_of_a_program_do_not_get_in_the_way(tmp_path: Path) -> None:
    """The folder of a program comes first in `sys.path`; its names are taken, whatever is in it."""
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} of the program was imported')\n")
    program = tmp_path / "program.py"
    program.write_text(
        """
import asyncio, pickle, sys, magnetar
everything = [getattr(magnetar, name) for name in magnetar.__all__]
id_ = magnetar.MessageId.parse("1:2:3:4:5")
assert magnetar.MessageId.from_bytes(id_.to_bytes()) == id_ == pickle.loads(pickle.dumps(id_))

with magnetar.Client("localhost:1", operation_timeout_s=0.3) as client:
    for use in (
        lambda: client.producer("t", value=magnetar.Json).send(1),
        lambda: client.consumer("t", "s", type="shared", retry=magnetar.Retry()),
        lambda: client.table_view("t"),
        lambda: client.topics.list(),
    ):
        try:
            use()
        except magnetar.TopicError:
            pass
print("well")
"""
    )
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("well\n", 0), done.stderr
