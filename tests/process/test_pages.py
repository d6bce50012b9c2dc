"""The examples of the documentation, copied word for word, on real processes and their usual ports.

Where this user may have a network of its own (`unshare -rn`), the ports are free in it whatever else runs here.
"""

import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import blocks_of
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    # One after the other: where they share the machine's network, they share its ports.
    pytest.mark.xdist_group("pages"),
]

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900
PORTS = (
    2181,
    3181,
    3182,
    3183,
    3184,
    6648,
    6650,
    6651,
    6652,
    6750,
    6751,
    8000,
    8001,
    8002,
    8003,
    8080,
    8081,
    8082,
    8101,
    8102,
    8103,
    8443,
)

OWN_NETWORK = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def network() -> list[str]:
    """What to put before a command, so that the usual ports are free for it."""
    with contextlib.suppress(OSError):
        if subprocess.run([*OWN_NETWORK, "true"], capture_output=True, check=False).returncode == 0:
            return OWN_NETWORK
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"port {port} is in use, and this user cannot have a network of its own (unshare -rn)")
    return []


def follow(page: str, folder: Path, *options: str, by: str = "tests.support.pages") -> str:
    command = [*network(), sys.executable, "-m", by, str(ROOT / page), str(folder), *options]
    found = subprocess.run(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False
    )
    assert found.returncode == 0, found.stdout
    return found.stdout


@pytest.mark.spark
def test_the_readme_can_be_copied_word_for_word(tmp_path: Path) -> None:
    sections = ("One process", "Use it", "Test with it", "Look into it")
    said = follow("README.md", tmp_path, *(word for name in sections for word in ("--section", name)))
    wanted = (
        "100000 messages acknowledged",
        "kitchen b'21.5'",
        "lamp 3",
        "2 passed",
        "3 bookies, 2 brokers",
        "a new disk",
    )
    for text in wanted:
        assert text in said, f"{text!r} is not in\n{said}"


def test_the_page_of_the_command_line_can_be_copied(tmp_path: Path) -> None:
    said = follow("docs/cli.md", tmp_path)
    assert '"id": 7' in said
    assert "_magnetar_completion" in (tmp_path / ".bashrc").read_text()


def test_the_page_of_the_servers_can_be_copied(tmp_path: Path) -> None:
    said = follow("docs/servers.md", tmp_path, "--section", "Beside a cluster on this machine")
    assert "127.0.0.1:3184  writable" in said
    assert "127.0.0.1:8082" in said


def test_the_page_of_auto_recovery_can_be_copied(tmp_path: Path) -> None:
    said = follow("docs/auto-recovery.md", tmp_path)
    assert "no ledger is known to lack copies" in said
    assert "a bookie may be away for 600 s" in said
    assert "was asked for an audit" in said
    assert '"/manage/v1/bookies/{bookie}/state"' in said
    assert '"safe": true' in said
    assert '"state": "drained"' in said
    assert '"removed": true' in said


def test_the_page_about_testing_can_be_copied(tmp_path: Path) -> None:
    """All blocks but the application in Go, which the reader has to supply."""
    assert "1 passed" in follow("docs/testing.md", tmp_path, "--without", "./application")


def test_the_page_of_the_topic_api_can_be_copied(tmp_path: Path) -> None:
    """Only one section, at another address: the page's broker names are invented, and its end needs another tool."""
    said = follow(
        "docs/topic-api.md", tmp_path, "--section", "Python", "--first", "magnetar standalone",
        "--instead", "broker-1:6648,broker-2:6648", "localhost:6648",
    )  # fmt: skip
    assert "customer-7 b'payload'" in said


def test_the_page_of_replicated_state_can_be_copied(tmp_path: Path) -> None:
    said = follow("docs/state-log.md", tmp_path)
    assert "1 words\n" in said
    assert said.count("a heavy star\n") == 2, "before and after a process was killed"
    assert "2 words\n" in said
    assert "a light star\n" in said


def test_the_page_of_permissions_can_be_copied(tmp_path: Path) -> None:
    said = follow("docs/permissions.md", tmp_path)
    assert '{"shop": ["produce", "consume"], "report": ["consume"]}' in said
    assert '"operations"' in said
    assert '"Prefix"' in said
    assert "unknown permission" in said


def test_the_page_of_policies_can_be_copied(tmp_path: Path) -> None:
    said = follow("docs/policies.md", tmp_path)
    assert "\n3600\n" in said
    assert '"destination_storage"' in said
    assert '"maxTopicsPerNamespace"' in said
    assert '{"maxTenants": "100"}' in said
    assert '{"publishRateInBytes": 10000000, "dispatchRateInMsgs": 50000}' in said


def test_the_page_about_access_can_be_copied(tmp_path: Path) -> None:
    said = follow("docs/access.md", tmp_path, "--section", "A secured standalone")
    assert "persistent://public/default/orders" in said
    assert '["standalone"]' in said
    assert "read b'from pulsar'" in said


@pytest.mark.parametrize("page", sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md")))
def test_blocks_that_are_not_run_say_what_they_are(page: str) -> None:
    """A plain block is a command, a file that is named before, or one of the few pages that are not followed."""
    not_followed = ("docs/BENCHMARKS.md", "docs/INTEROP.md", "docs/bookie-operations.md", "docs/production.md")
    for block in blocks_of((ROOT / page).read_text()):
        if not block.language and not block.file and page not in not_followed:
            first = block.text.split()[0]
            known = ("magnetar", "seq", "echo", "pip", "python", "grpcurl", "source", "curl", "kill")
            assert first in known, f"{page}: {block.text}"


@pytest.mark.spark
def test_the_page_of_spark_can_be_copied(tmp_path: Path) -> None:
    said = follow("docs/spark.md", tmp_path)
    wanted = (
        "|1    |", "|2    |", "2 orders", "sensor-kitchen|kitchen|21.5", "this is no JSON", "|kitchen| 21.5|",
        "|      5|    7|", "2 in the last hour", "|kitchen|  off|", "2 to be billed", "3 tasks", "|   18.0|",
        "5 in files", "schema_type", "count(1)", "LX14", "2 copied",
    )  # fmt: skip
    for text in wanted:
        assert text in said, f"{text!r} is not in\n{said}"


@pytest.mark.spark
def test_the_notebook_goes_from_a_topic_to_a_plot(tmp_path: Path) -> None:
    said = follow("docs/weather.ipynb", tmp_path, by="tests.support.notebook")
    assert "48 rows of 60 readings each" in said
    assert "[image/png]" in said
