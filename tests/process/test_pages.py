"""The examples of the documentation, copied word for word, on real processes and their usual ports.

Where this user may have a network of its own (`unshare -rn`), the ports are free in it whatever else runs here.
"""

import contextlib
import json
import re
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
    3185,
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
    8004,
    8009,
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


def stop_of(name: str) -> str:
    """Stops a server of the cluster and waits for its end."""
    pid = f"$(magnetar cluster status --directory ./cluster | awk '$1 == \"{name}\" {{print $3}}')"
    return f"pid={pid}; kill $pid; timeout 60 tail --pid=$pid -f /dev/null"


def before(command: str, *steps: str) -> list[str]:
    """Options of `tests.support.pages`: what the reader does by himself when the page comes to *command*."""
    return [word for step in steps for word in ("--before", command, step)]


HASH_OF_THE_PAGE = "sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752"

# Inline commands of the two pages of operators that do not run here.
NOT_RUN = {
    "make demo-drain": "it is for watching, and takes minutes; what it plays is tests/process/test_drain.py",
    "pulsar-admin bookies set-bookie-rack": "Apache's tool needs Apache's server folder; tests/interop/test_tools.py",
    "pulsar-admin brokers update-dynamic-config": "the same; tests/interop/admin_commands.py",
}


def named_but_not_run(page: str, said: str) -> list[str]:
    """Commands in the sentences of *page* that nothing ran which *said* tells of."""
    typed = [line.removeprefix("$ ") for line in said.splitlines() if line.startswith("$ ")]
    left = []
    for span in re.findall(r"`((?:magnetar|make|pulsar-admin) [^`]+)`", (ROOT / page).read_text()):
        words = span.replace("…", "").removesuffix("BOOKIE").strip()
        if not any(line.startswith(words) for line in typed) and not any(words.startswith(one) for one in NOT_RUN):
            left.append(span)
    return left


def test_the_page_of_auto_recovery_can_be_copied(tmp_path: Path) -> None:
    """Its machines are this one. A token is in the environment as the page assumes, and its hash in place of theirs."""
    made = subprocess.run(
        [sys.executable, "-m", "magnetar", "autorecovery", "token", "deployer", "--role", "write", "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    token = json.loads(made.stdout)
    hashed = token["line"].split()[-1]
    recover = "magnetar autorecovery recover 127.0.0.1:3185"
    leaving = json.dumps({"bookies": ["127.0.0.1:3184"]})
    reports = "magnetar autorecovery reports"
    report_id = f"$({reports} list | awk '/no answer/ {{print $1}}')"
    said = follow(
        "docs/auto-recovery.md", tmp_path,
        # One more, which is lost for good.
        "--instead", "--bookies 4", "--bookies 5",
        "--instead", "10.0.0.3:3181", "127.0.0.1:3185",
        "--instead", "zk://zk1:2181;zk2:2181/ledgers", "zk://127.0.0.1:2181/ledgers",
        "--instead", HASH_OF_THE_PAGE, hashed,
        "--instead", "/etc/magnetar/tokens", "tokens",
        "--instead", "httpServerHost=node-1", "httpServerHost=127.0.0.1\nhttpServerPort=8009",
        "--instead", "http://node-1:8000", "http://127.0.0.1:8009",
        "--instead", "0-data-loss-0f3a1b2c4d5e", report_id,
        "--set", "TOKEN", token["token"],
        "--ends", f"{reports} list", "2",
        *before("magnetar autorecovery status", "for topic in a b c d e f; do magnetar produce $topic -m hello; done"),
        *before(f"{recover} --dry-run", stop_of("bookie-5")),
        *before("""kill $(magnetar cluster status --directory ./cluster | awk '$1 == "bookie-4" {print $3}')""",
                f"curl -sS --fail-with-body --json '{leaving}' http://127.0.0.1:8000/manage/v1/safe-to-remove"),
        *before("magnetar cluster down --directory ./cluster", f"{reports} list --state mended", "magnetar doctor",
                "! curl -sS --fail-with-body http://127.0.0.1:8009/manage/v1/bookies"),
    )  # fmt: skip
    wanted = (
        "no ledger is known to lack copies",
        "a bookie may be away for 600 s",
        "was asked for an audit",
        "ledgers are elsewhere now",
        '"/manage/v1/bookies/{bookie}/state"',
        '"safe": true',
        '"state": "drained"',
        '"removed": true',
        "is acknowledged",
        "is mended",
        ": copied back)",
        "send the header Authorization",
    )
    for text in wanted:
        assert text in said, f"{text!r} is not in\n{said}"
    assert named_but_not_run("docs/auto-recovery.md", said) == []


def test_the_page_about_running_a_bookie_can_be_copied(tmp_path: Path) -> None:
    """On four bookies. What the page says between its commands is done too: a disk is replaced, a bookie stopped, and
    at the end all servers go over to TLS with the page's certificates."""
    page = "docs/bookie-operations.md"
    second = "--admin-url http://127.0.0.1:8001"
    servers = ("bookie-1", "bookie-2", "bookie-4", "broker-1", "broker-2")
    roles = next(one for one in blocks_of((ROOT / page).read_text()) if "authorizedRoles" in one.text)
    (tmp_path / "bookie.tls").write_text(f"tlsDirectory={tmp_path}/bookie\n{roles.text}")
    (tmp_path / "broker.tls").write_text(f"bookkeeperTLSDirectory={tmp_path}/broker\n")
    said = follow(
        page, tmp_path,
        "--first", "magnetar cluster up --directory ./cluster --bookies 4",
        "--first", "for topic in a b c d e f; do seq 1 500 | magnetar produce $topic -f -; done",
        *before("magnetar bookie rebuild-index --config bookie.conf --yes",
                stop_of("bookie-2"), "cp cluster/bookie-2/bookie.conf bookie.conf"),
        *before('magnetar bookies drain 127.0.0.1:3183 --why "old disks" --wait',
                "rm -r cluster/bookie-2/ledgers cluster/bookie-2/journal",
                "echo dataIntegrityChecking=true >> cluster/bookie-2/bookie.conf",
                "magnetar cluster up --directory ./cluster --bookies 4",
                "for topic in a b c d e f; do magnetar produce $topic -m next; done",
                f"until ! magnetar bookie status {second} | grep 'to be checked'; do sleep 1; done",
                "magnetar autorecovery reports list",
                f"magnetar bookie metrics {second} | grep ^magnetar_bookie_integrity",
                "magnetar bookies drain 127.0.0.1:3184",
                "magnetar bookies cancel 127.0.0.1:3184"),
        *before("magnetar bookies remove 127.0.0.1:3183 --yes", stop_of("bookie-3")),
        *before("magnetar bookie ledgers --metadata",
                "openssl verify -CAfile ca.crt bookie/tls.crt broker/tls.crt",
                *(step for name in servers for step in (
                    f"cat {name[:6]}.tls >> cluster/{name}/{name[:6]}.conf",
                    stop_of(name),
                    f"magnetar {name[:6]} --config cluster/{name}/{name[:6]}.conf",
                )),
                "magnetar produce a -m 'over TLS'",
                "magnetar ledgers list --tls-directory broker",
                "magnetar doctor --tls-directory broker",
                "magnetar autorecovery recover 127.0.0.1:3184 --dry-run --tls-directory broker"),
    )  # fmt: skip
    wanted = (
        r"operator \(kernel update\)",
        r"\$ magnetar bookie readonly off\n.*writable",
        r"lost +0 entries",
        r"\d+ entries of \d+ ledgers",
        r"nobody has reported damage",
        r"integrity_copied_entries_total\S+ [1-9]",
        r"integrity_lost_entries_total\S+ 0",
        r"draining → active",
        r"127.0.0.1:3183  drained",
        r"127.0.0.1:3183 is removed",
        r"broker/tls.crt: OK",
        r"'over TLS'\n1 messages acknowledged",
        r"ledger +0\nstate +closed",
        r"\n0  .*local-0",
    )
    for text in wanted:
        assert re.search(text, said), f"{text!r} is not in\n{said}"
    assert named_but_not_run(page, said) == []


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
    not_followed = ("docs/BENCHMARKS.md", "docs/INTEROP.md", "docs/production.md")
    for block in blocks_of((ROOT / page).read_text()):
        if not block.language and not block.file and page not in not_followed:
            first = block.text.split()[0]
            known = ("magnetar", "seq", "echo", "pip", "python", "grpcurl", "source", "curl", "kill", "openssl")
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
