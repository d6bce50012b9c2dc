"""What `pip install` brings: the marks that make type checkers look at our types."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.wheel import built_wheel

pytest.importorskip("hatchling", reason="the builder belongs to the tools of development")

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300

PROGRAM = """
import magnetar
from magnetar.testing import standalone


def sent(client: magnetar.Client) -> magnetar.MessageId:
    return client.producer("t").send(b"x", key="k")


async def received(client: magnetar.AsyncClient) -> bytes:
    consumer = await client.consumer("t", "s")
    message = await consumer.receive(1.0)
    await consumer.ack(message)
    return message.payload


def started() -> str:
    with standalone() as server:
        return server.service_url
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_the_lists_of_apaches_settings(wheel: Path) -> None:
    lists = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".conf")}
    folders = ("broker", "bookie", "autorecovery")
    assert lists == {str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.conf")}
    assert len(lists) == 9


def test_the_wheel_says_that_it_has_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"magnetar/py.typed", "connectors/py.typed", "magnetar_core/topics/topics_pb2.pyi"} <= set(names)


def test_a_strict_type_checker_accepts_programs_and_refuses_wrong_ones(wheel: Path, tmp_path: Path) -> None:
    """As somebody sees it who has installed the wheel: mypy looks into installed packages with the mark only."""
    venv.create(tmp_path / "venv", with_pip=False)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)

    def check(text: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "program.py").write_text(text)
        python = tmp_path / "venv" / "bin" / "python"
        return subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--cache-dir",
             str(tmp_path / "cache"), "--python-executable", str(python), "program.py"],
            cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    found = check(PROGRAM)
    assert found.returncode == 0, found.stdout + found.stderr
    wrong = check(PROGRAM.replace('send(b"x", key="k")', "send(1)"))
    assert 'Argument 1 to "send" of "Producer" has incompatible type "int"; expected "bytes | None"' in wrong.stdout
