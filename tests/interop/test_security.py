"""Apache's tools at a secured standalone of ours: over TLS, with tokens, and with no more than their role may do."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deploy.fetch_apache import DISTRIBUTION
from tests.process.test_secure_standalone import run, standalone
from tests.support.go_programs import build_go
from tests.support.mixed_cluster import compile_java, run_java

HERE: Final = Path(__file__).parent

Cell = Callable[[str, str], None]

NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/orders"


def tool(profile: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script of the distribution, with *profile* as its `client.conf`."""
    environment = {
        "PULSAR_CLIENT_CONF": str(profile),
        "PULSAR_MEM": "-Xmx256m",
        "PULSAR_GC": "-XX:+UseSerialGC",
        "PULSAR_EXTRA_OPTS": "-XX:TieredStopAtLevel=1",
        "PULSAR_LOG_DIR": str(profile.parent / "logs"),
    }
    return subprocess.run(
        [str(DISTRIBUTION / "bin" / name), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=180, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def test_apaches_tools_over_tls_with_tokens(cell: Cell, tmp_path: Path) -> None:
    cell("`pulsar-admin` and `pulsar-client` over TLS, with tokens", "our secured standalone")
    keys = tmp_path / "keys"
    with standalone(tmp_path):
        admin = keys / "admin.conf"

        def asked(profile: Path, *arguments: str) -> str:
            done = tool(profile, "pulsar-admin", *arguments)
            assert done.returncode == 0, done.stdout[-3000:]
            return done.stdout

        asked(admin, "topics", "create", TOPIC)
        asked(admin, "namespaces", "grant-permission", NAMESPACE, "--role", "shop", "--actions", "produce,consume")
        assert "shop" in asked(admin, "namespaces", "permissions", NAMESPACE)
        (keys / "shop.token").write_text(run("tokens", "create", "shop", "--secret-key", str(keys / "token.key")))
        shop = keys / "shop.conf"
        shop.write_text(admin.read_text().replace("admin.token", "shop.token"))
        sent = tool(shop, "pulsar-client", "produce", TOPIC, "-m", "from the shop")
        assert "1 messages successfully produced" in sent.stdout, sent.stdout[-3000:]
        got = tool(shop, "pulsar-client", "consume", TOPIC, "-s", "s", "-n", "1", "-p", "Earliest")
        assert "from the shop" in got.stdout, got.stdout[-3000:]
        refused = tool(shop, "pulsar-admin", "topics", "delete", TOPIC)
        assert "shop may not" in refused.stdout, refused.stdout[-2000:]  # the tool ends with 0 all the same
        (keys / "shop.token").write_text("nonsense")
        stranger = tool(shop, "pulsar-admin", "topics", "list", NAMESPACE)
        assert stranger.returncode != 0
        assert "401" in stranger.stdout, stranger.stdout[-2000:]
        assert TOPIC in asked(admin, "topics", "list", NAMESPACE)


def test_javas_client_over_tls_with_a_token(cell: Cell, tmp_path: Path) -> None:
    """The same tour as without them (`test_tools`)."""
    cell("the official Java client over TLS, with a token", "our secured standalone")
    classes = compile_java([HERE / "java" / "Tour.java"], tmp_path / "classes")
    keys = tmp_path / "keys"
    with standalone(tmp_path) as (profile, *_):
        said = run_java(tmp_path, classes, "Tour", profile.service_url, str(keys / "ca.crt"), str(keys / "admin.token"))
    assert said.rstrip().endswith("END"), said[-3000:]
    assert said.count("HELD ") == 25


def test_gos_client_over_tls_with_a_token(cell: Cell, tmp_path: Path) -> None:
    """The same tour as without them (`test_tools`)."""
    cell("the official Go client over TLS, with a token", "our secured standalone")
    program = build_go(HERE / "go", tmp_path / "tour")
    keys = tmp_path / "keys"
    with standalone(tmp_path) as (profile, *_):
        run("--profile", str(keys / "admin.conf"), "topics", "create", "go-parts", "--partitions", "3")
        done = subprocess.run(
            [str(program), profile.service_url, str(keys / "ca.crt"), str(keys / "admin.token")],
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.rstrip().endswith("END")
