"""The page about production, word for word, on three machines that are loopback addresses here."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines import install, stop_all
from tests.support.pages import blocks_of
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.xdist_group("pages"),
]

PAGE = Path(__file__).parents[2] / "docs/production.md"
TIMEOUT_S = 300
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
        self.said: dict[str, str] = {}
        """Command → what it printed."""

    def type(self, command: str) -> None:
        began_s = time.monotonic()
        found = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self._environment, timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        self.said[command] = found.stdout + found.stderr
        print(f"$ {command}\n{self.said[command]}  ({time.monotonic() - began_s:.1f} s)", flush=True)
        allowed = (0, 1) if " doctor " in command else (0,)  # warnings: the disk of this machine may be full
        assert found.returncode in allowed, f"{command}: {found.returncode}: {self.said[command]}"


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    made = Operator(tmp_path)
    try:
        yield made
    finally:
        stop_all(made.machines)


def test_the_page_about_production_can_be_followed_word_for_word(operator: Operator) -> None:
    text = PAGE.read_text()
    for name, address in ADDRESSES.items():
        text = text.replace(f"DNS:{name}", f"IP:{address}").replace(name, address)
    sections = []
    for block in blocks_of(text):
        if block.file:
            (operator.folder / block.file).write_text(block.text)
            continue
        if block.language:
            assert block.section in ("In containers", "On Kubernetes"), "all the rest is typed"
            continue
        sections.append(block.section)
        for command in block.text.splitlines():
            operator.type(command)
    assert set(sections) == {
        "Keys and users", "Settings", "First start", "Upgrade", "Backup and restore", "Monitoring"
    }  # fmt: skip
    said = operator.said
    doctor = next(told for command, told in said.items() if " doctor " in command)
    assert "error" not in doctor
    brokers = next(told for command, told in said.items() if "brokers list" in command)
    assert all(address in brokers for address in ADDRESSES.values())
    reads = [told for command, told in said.items() if command.endswith("read persistent://shop/orders/paid")]
    assert all("the first one" in told for told in reads), "the restored cluster has it too"
    metrics = (operator.folder / "recovery.metrics").read_text()
    assert "magnetar_autorecovery_has_auditor 1" in metrics
    assert 'magnetar_autorecovery_bookies{serving="writable"} 3' in metrics
