"""The official Go client beyond the ordinary, at our broker and at Apache's, line by line; and at our secured doors.

`go_client` prints what it observed. What differs must stand in `go_client_differences` with its reason, and what
stands there must still be so.
"""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from magnetar.processes.cluster import reserved_ports
from magnetar_core.security.tokens import sign
from tests.interop.go_client_differences import DIFFERENT
from tests.support.go_programs import build_go
from tests.support.mixed_cluster import Brand, MixedCluster
from tests.support.tls_files import Authority, openssl

HERE: Final = Path(__file__).parent
TIMEOUT_S: Final = 480
SETTINGS: Final[dict[str, Any]] = {
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "forceDeleteNamespaceAllowed": "true",
    "transactionCoordinatorEnabled": "false",
}
SECRET: Final = bytes(range(32))
PROVIDER: Final = "org.apache.pulsar.broker.authentication.AuthenticationProvider"

Cell = Callable[[str, str], None]


class Line(NamedTuple):
    scenario: str
    step: str
    saw: Any


Seen = dict[Brand, list[Line]]


CLIENT_BROKE: Final = ("index out of range [0] with length 0", "pulsar.(*partitionConsumer).dispatcher")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_go(HERE / "go_client", tmp_path_factory.mktemp("program") / "go_client")


def seen_at(brand: Brand, program: Path, folder: Path) -> list[Line]:
    """What the program observes in all scenarios at a new broker of this brand.

    They run side by side. On a busy machine one of them may wait in vain for a message (seen at Apache's broker, where
    it passes alone): then all are run once more, which is told. So it is where the client itself breaks: when a seek
    empties its queue while a batch is in there of which nothing was left to hand out, it looks at the first message of
    nothing (client 0.15.0, seen at Apache's broker once in some dozens of runs).
    """
    lines = run_at(brand, program, folder)
    if stopped := [line for line in lines if line.step == "stopped"]:
        print(f"at the {brand} broker, run once more: {stopped}", file=sys.stderr)
        again = folder / "again"
        again.mkdir()
        lines = run_at(brand, program, again)
    return lines


def run_at(brand: Brand, program: Path, folder: Path) -> list[Line]:
    """One run of all scenarios."""
    openssl("genrsa", "-traditional", "-out", "private.pem", "2048", cwd=folder)
    openssl("rsa", "-in", "private.pem", "-pubout", "-out", "public.pem", cwd=folder)
    with MixedCluster(folder / "cluster", copies=1) as cluster:
        cluster.start_zookeeper()
        cluster.initialise(brand)
        cluster.add("bookie", brand)
        broker = cluster.add("broker", brand, **SETTINGS)
        done = subprocess.run(
            [str(program), broker.service_url, broker.admin_url], capture_output=True, text=True, timeout=TIMEOUT_S,
            check=False, env={**os.environ, "GO_CLIENT_KEYS": str(folder)},
        )  # fmt: skip
        if done.returncode != 0 and all(text in done.stderr for text in CLIENT_BROKE):
            return [Line("all", "stopped", done.stderr[-1000:])]
        assert done.returncode == 0, done.stderr[-3000:]
        if brand == "ours":
            assert "Traceback" not in broker.log.read_text(errors="replace"), broker.log_tail(60)
    return [Line(**json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def seen(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    brands: list[Brand] = ["apache", "ours"]
    folders = [tmp_path_factory.mktemp(brand) for brand in brands]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda brand, folder: seen_at(brand, program, folder), brands, folders)
        return dict(zip(brands, found, strict=True))


def scenarios(lines: list[Line]) -> dict[str, list[Line]]:
    return {name: list(of) for name, of in groupby(lines, lambda line: line.scenario)}


def differences(seen: Seen) -> dict[tuple[str, str], str]:
    """Scenario and step of each line that is not the same at both, with both."""
    found: dict[tuple[str, str], str] = {}
    apaches, ours = scenarios(seen["apache"]), scenarios(seen["ours"])
    for name in apaches:
        for one, other in zip_longest(apaches[name], ours.get(name, [])):
            if one != other:
                shown = one or other
                assert shown is not None, "one of two lines of a pair is there"
                found.setdefault((name, shown.step), f"Apache {one}\n  ours   {other}")
    return found


def test_the_go_client_meets_the_same(seen: Seen, cell: Cell) -> None:
    cell("the official Go client, its whole API, as with Apache or listed", "our broker")
    stopped = [line for lines in seen.values() for line in lines if line.step == "stopped"]
    assert not stopped, stopped
    assert [lines[-1].step for lines in seen.values()] == ["ended", "ended"]
    wrong = {key: shown for key, shown in differences(seen).items() if key not in DIFFERENT}
    assert not wrong, "\n".join(f"{key}\n  {shown}" for key, shown in wrong.items())


def test_what_is_listed_is_still_so(seen: Seen) -> None:
    assert sorted(set(DIFFERENT) - set(differences(seen))) == []


class Door(NamedTuple):
    """A secured broker of ours, and what its clients show."""

    program: Path
    url: str
    authority: Authority
    folder: Path

    def __call__(self, kind: str, *arguments: str, url: str = "", **more: str) -> str:
        """How it ended when the client came with this: OK, or its error and its log; that it ends is part of it."""
        environment = {"GO_CLIENT_TRUST": str(self.authority.certificate), **more}
        done = subprocess.run(
            [str(self.program), "door", url or self.url, kind, *arguments], capture_output=True, text=True, timeout=60,
            check=False, env={**os.environ, **environment},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        ended = done.stdout.strip()
        return ended if ended == "OK" else f"{ended}\n{done.stderr}"


def token(role: str, **claims: Any) -> str:
    return sign({"sub": role, **claims}, SECRET, "HS256")


@pytest.fixture(scope="module")
def door(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    authority = Authority(folder / "tls")
    server = authority.folder("broker", host="IP:127.0.0.1")
    users = subprocess.run(["openssl", "passwd", "-apr1", "pw"], capture_output=True, text=True, check=True)
    (folder / "users").write_text(f"ann:{users.stdout}")
    with closing(reserved_ports()) as ports, MixedCluster(folder / "cluster", copies=1) as cluster:
        cluster.start_zookeeper()
        cluster.add("bookie", "ours")
        cluster.add(
            "broker", "ours", brokerServicePortTls=(port := next(ports)),
            tlsCertificateFilePath=server / "tls.crt", tlsKeyFilePath=server / "tls.key",
            tlsTrustCertsFilePath=authority.certificate, authenticationEnabled="true",
            authenticationProviders=",".join(PROVIDER + kind for kind in ("Token", "Basic", "Tls")),
            tokenSecretKey="data:;base64," + base64.b64encode(SECRET).decode(), basicAuthConf=folder / "users",
        )  # fmt: skip
        yield Door(program, f"pulsar+ssl://127.0.0.1:{port}", authority, folder)


# The client tries again until its time is over, and says in its log why it was not let in.
REFUSED: Final = "Failed to establish connection with broker: '"


def test_go_comes_in_by_tokens(door: Door, cell: Cell) -> None:
    cell("the official Go client over TLS: tokens, passwords, certificates", "our broker")
    good = token("ann")
    (door.folder / "token").write_text(good)
    assert door("token", good) == "OK"
    assert door("supplier", good) == "OK"
    assert door("file", str(door.folder / "token")) == "OK"


@pytest.mark.parametrize(
    "shown",
    [
        ("none",),
        ("token", "nonsense"),
        ("token", sign({"sub": "ann"}, bytes(32), "HS256")),
        ("token", token("ann", exp=int(time.time()) - 60)),
        ("basic", "ann", "wrong"),
    ],
    ids=["nothing", "no token", "another secret", "expired", "another password"],
)
def test_go_is_refused_with_a_reason_in_its_log(door: Door, cell: Cell, shown: tuple[str, ...]) -> None:
    cell("the official Go client over TLS: tokens, passwords, certificates", "our broker")
    said = door(*shown)
    assert said.startswith("context deadline exceeded\nconnection error")
    assert REFUSED in said


def test_go_comes_in_by_a_password_or_a_certificate(door: Door, cell: Cell) -> None:
    cell("the official Go client over TLS: tokens, passwords, certificates", "our broker")
    client = door.authority.folder("ann")
    stranger = Authority(door.folder / "strangers", "strangers").folder("ann")
    assert door("basic", "ann", "pw") == "OK"
    assert door("tls", str(client / "tls.crt"), str(client / "tls.key")) == "OK"
    assert door("tls", str(stranger / "tls.crt"), str(stranger / "tls.key")) != "OK"


def test_go_always_looks_at_the_name_in_the_broker_s_certificate(door: Door, cell: Cell) -> None:
    cell("the official Go client over TLS: tokens, passwords, certificates", "our broker")
    other = door.url.replace("127.0.0.1", "localhost")
    assert door("token", token("ann"), GO_CLIENT_HOSTNAME="yes") == "OK"
    for asked in ("", "yes"):  # it does so unasked as well: Go's own TLS takes the name from the address
        assert "wanted to match localhost" in door("token", token("ann"), url=other, GO_CLIENT_HOSTNAME=asked)
    strangers = Authority(door.folder / "others", "others")
    assert door("token", token("ann"), GO_CLIENT_TRUST=str(strangers.certificate)) != "OK"
