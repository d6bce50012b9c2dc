"""The page about production, word for word, on three machines that are loopback addresses here."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines import install, kill_all, wait_ready
from tests.support.pages import blocks_of
from tests.support.warm import warm_folder
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

PAGE = Path(__file__).parents[2] / "docs/production.md"
TIMEOUT_S = 300
TO_THE_FIRST_START = ("Keys and users", "Settings", "First start")
BESIDE_APACHE = "In the place of Apache's brokers"
READ = "magnetar --profile client.conf --token file:till.token read persistent://shop/orders/paid"
# Not those of 127.0.0.1: a cluster of another test may be there.
ADDRESSES = {f"m{number}.example.com": f"127.7.0.{number}" for number in (1, 2, 3)}


class Operator:
    """Types the commands of the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "mine"
        self.machines = folder / "machines"
        self.folder.mkdir()
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MAGNETAR_")}
        self._environment = {**clean, **install(self.machines)}
        self._environment["PATH"] = f"{warm_folder()}{os.pathsep}{self._environment['PATH']}"
        self.said: dict[str, str] = {}
        """Command → what it printed."""

    def follow(self, *sections: str) -> None:
        text = PAGE.read_text()
        for name, address in ADDRESSES.items():
            text = text.replace(f"DNS:{name}", f"IP:{address}").replace(name, address)
        for block in blocks_of(text):
            if block.section not in sections:
                continue
            if block.file:
                (self.folder / block.file).write_text(block.text)
            else:
                for command in block.text.splitlines():
                    self.type(command)

    def type(self, command: str) -> None:
        began_s = time.monotonic()
        wait_ready(self.machines)
        found = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self._environment, timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        self.said[command] = found.stdout + found.stderr
        print(f"$ {command}\n{self.said[command]}  ({time.monotonic() - began_s:.1f} s)", flush=True)
        allowed = (0, 1) if " doctor " in command else (0,)  # warnings: the disk of this machine may be full
        assert found.returncode in allowed, f"{command}: {found.returncode}: {self.said[command]}"


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """The page's cluster has been started for the first time."""
    made = Operator(tmp_path_factory.mktemp("production"))
    try:
        made.follow(*TO_THE_FIRST_START)
        yield made
    finally:
        kill_all(made.machines)


def test_the_page_about_production_can_be_followed_word_for_word(operator: Operator) -> None:
    brokers = "magnetar --profile client.conf brokers list"
    said = operator.said
    doctor = next(told for command, told in said.items() if " doctor " in command)
    assert "error" not in doctor
    first = said.pop(brokers)
    assert all(address in first for address in ADDRESSES.values())
    assert "the first one" in said.pop(READ)
    operator.follow("Upgrade", BESIDE_APACHE, "Monitoring")
    assert next(told for command, told in said.items() if "--before-handover" in command).startswith("fine")
    assert all(address in said[brokers] for address in ADDRESSES.values())
    metrics = (operator.folder / "recovery.metrics").read_text()
    assert "magnetar_autorecovery_has_auditor 1" in metrics
    assert 'magnetar_autorecovery_bookies{serving="writable"} 3' in metrics


@pytest.mark.long("nine servers are stopped and started again")
def test_what_was_backed_up_is_restored_word_for_word(operator: Operator) -> None:
    operator.follow("Backup and restore")
    assert "the first one" in operator.said[READ]


def test_all_of_the_page_is_followed() -> None:
    text = PAGE.read_text()
    typed = {block.section for block in blocks_of(text) if not block.file and not block.language}
    assert typed == {*TO_THE_FIRST_START, "Upgrade", BESIDE_APACHE, "Backup and restore", "Monitoring"}
    read_only = {block.section for block in blocks_of(text) if block.language}
    assert read_only == {"Capacity", "In containers", "On Kubernetes"}
