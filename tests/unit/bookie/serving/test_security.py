"""TLS and roles on the bookie port: which clients are admitted, and the answers to the others."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie.access import Rules, refusal_of, role_of
from bookie.bookie import Bookie
from bookie.config import IGNORED_SETTINGS, BookieConfig
from bookie.serving.tls_listener import TlsListener
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.tls.disk_space import ask_disks
from magnetar_core.bookkeeper.tls.start_tls import TlsFailed, open_stream
from magnetar_core.bookkeeper.wire import bookkeeper_pb2 as pb
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.framing import MalformedFrame
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.config import load
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.tls.contexts import Certificates, client_context, server_context
from magnetar_core.security.tls.files import (
    APACHE_FACTORY,
    TlsFiles,
    directory_files,
    openssl_ciphers,
    store_problem,
)
from tests.support import bookie_requests
from tests.support.bookie_disks import KEY
from tests.support.bookie_disks import stored_entry as stored
from tests.support.manual_clock import ManualClock
from tests.support.serving import CONFIG, BookieMachines, Wire
from tests.support.tls_files import Authority
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.both_loops

EUA_V2 = int(v2.V2Error.EUA)
EUA, EBADREQ = int(v3.V3Error.EUA), int(v3.V3Error.EBADREQ)
ROLES = "org.apache.bookkeeper.tls.BookieAuthZFactory"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("tls") / "ours")
    made.folder("bookie", unit="0:storage")
    made.folder("broker", unit="0:broker,other;1:east")
    made.folder("stranger", unit="1:east")
    return made


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority that nobody trusts."""
    made = Authority(tmp_path_factory.mktemp("tls") / "others", "nobody")
    made.folder("broker")
    return made


def demanding(authority: Authority, **changes: Any) -> BookieConfig:
    return replace(CONFIG, tls_directory=str(authority.directory / "bookie"), **changes)


def offering(authority: Authority, **changes: Any) -> BookieConfig:
    """A configuration that offers TLS by Apache's settings."""
    own = authority.directory / "bookie"
    return replace(
        CONFIG,
        tls_provider_factory=APACHE_FACTORY,
        tls_certificate=str(own / "tls.crt"),
        tls_key=str(own / "tls.key"),
        **changes,
    )


def with_roles(authority: Authority, *roles: str) -> BookieConfig:
    return offering(
        authority,
        tls_client_authentication=True,
        tls_trusted=str(authority.certificate),
        auth_factory=ROLES,
        authorized_roles=roles,
    )


def certificates(authority: Authority, name: str = "broker", **changes: Any) -> Certificates:
    files = directory_files(str(authority.directory / name), "folder")
    return Certificates(replace(files, **changes), client_context, LoopClock())


async def over_tls(bookie: Bookie, certificates: Certificates) -> Wire:
    return Wire(*await open_stream(*bookie.address, certificates))


async def handshake(wire: Wire, context: ssl.SSLContext) -> None:
    """Request START_TLS and do the TLS handshake, without the authentication that our client sends next."""
    answer = await wire.ask_v3(v3.start_tls_request(7))
    assert (answer.header.txnId, answer.status, answer.HasField("startTLSResponse")) == (7, 0, True)
    await wire.writer.start_tls(context)


async def write_and_read(wire: Wire, ledger_id: int) -> None:
    for entry_id in range(3):
        assert await wire.add(stored(ledger_id, entry_id)) == 0
    assert await wire.read(ledger_id, 1) == stored(ledger_id, 1)


# -- what comes in


async def test_a_bookie_that_demands_tls_serves_both_protocols_over_it(authority: Authority) -> None:
    async with BookieMachines().serving(demanding(authority)) as bookie:
        wire = await over_tls(bookie, certificates(authority))
        await write_and_read(wire, 1)
        wire.close()
        wire = await over_tls(bookie, certificates(authority))
        answer = await wire.ask_v3(bookie_requests.add_request(1, 2, 0, KEY, stored(2, 0)))
        assert answer.status == 0
        answer = await wire.ask_v3(v3.read_request(2, 2, 0))
        assert answer.readResponse.body == stored(2, 0)
        wire.close()


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_large_entries_and_many_frames_pass_in_each_version(authority: Authority, version: str) -> None:
    async with BookieMachines().serving(demanding(authority, tls_protocols=(version,))) as bookie:
        wire = await over_tls(bookie, certificates(authority))
        session = wire.writer.get_extra_info("ssl_object")
        assert session.version() == version
        entries = [stored(1, entry_id, os.urandom(300_000)) for entry_id in range(5)]
        entries += [stored(1, entry_id) for entry_id in range(5, 500)]
        wire.send(*(v2.add_request_head(0, KEY, len(entry)) + entry for entry in entries))
        await wire.until(len(entries))
        assert [v2.parse_response(memoryview(frame))[1] for frame in wire.frames] == [0] * len(entries)
        wire.close()
        wire = await over_tls(bookie, certificates(authority))
        for entry_id, entry in enumerate(entries[:10]):
            assert await wire.read(1, entry_id) == entry
        wire.close()


async def test_where_tls_is_offered_clear_text_goes_on_as_before(authority: Authority) -> None:
    async with BookieMachines().serving(offering(authority)) as bookie:
        wire = await Wire.connect(bookie)
        await write_and_read(wire, 1)
        wire.close()
        wire = await Wire.connect(bookie)
        assert (await wire.ask_v3(bookie_requests.add_request(1, 2, 0, KEY, stored(2, 0)))).status == 0
        wire.close()
        wire = await over_tls(bookie, certificates(authority, certificate="", key=""))
        await write_and_read(wire, 3)
        wire.close()


async def test_the_first_frame_may_come_byte_by_byte(authority: Authority) -> None:
    async with BookieMachines().serving(offering(authority)) as bookie:
        for request in (bookie_requests.add_request(1, 2, 0, KEY, stored(2, 0)), v3.start_tls_request(1)):
            wire = await Wire.connect(bookie)
            for byte in request:
                wire.send(bytes([byte]))
                await wire.writer.drain()
                await asyncio.sleep(0)
            assert v3.parse_response(await wire.next()).status == 0
            wire.close()


async def test_a_bookie_with_tls_says_so_in_its_registration(authority: Authority) -> None:
    for config, extensions in ((CONFIG, ()), (offering(authority), ("tls",)), (demanding(authority), ("tls",))):
        world = BookieMachines()
        async with world.serving(config):
            endpoint = (await BookieDirectory(world.store).info_of("bookie-1")).rpc
            assert endpoint is not None
            assert endpoint.extensions == extensions


async def test_the_right_role_comes_in_and_others_are_refused(authority: Authority) -> None:
    async with BookieMachines().serving(with_roles(authority, "auditor", "broker")) as bookie:
        wire = await over_tls(bookie, certificates(authority))
        await write_and_read(wire, 1)
        wire.close()
        for name in ("bookie", "stranger"):
            with pytest.raises(TlsFailed, match=rf"authorizedRoles.*{name}/tls\.crt"):
                await over_tls(bookie, certificates(authority, name))


async def test_the_wrong_role_keeps_its_connection_and_hears_no(authority: Authority) -> None:
    async with BookieMachines().serving(with_roles(authority, "auditor")) as bookie:
        wire = await Wire.connect(bookie)
        await handshake(wire, certificates(authority).context)
        assert (await wire.ask_v3(v3.read_request(3, 1, 0))).status == EUA
        assert (await wire.ask_v3(v3.start_tls_request(4))).status == EBADREQ
        assert await wire.add(stored(1, 0)) == v2.V2Error.EUA
        assert await wire.read(1, 0) == v2.V2Error.EUA
        wire.send(v2.batch_read_request(1, 0, 1, 10, 1000))
        assert await wire.closed()


# -- what does not


async def test_clear_text_is_refused_where_tls_is_demanded(authority: Authority) -> None:
    async with BookieMachines().serving(demanding(authority)) as bookie:
        wire = await Wire.connect(bookie)
        info = await wire.ask_v3(v3.bookie_info_request(5))
        assert (info.header.txnId, info.header.operation, info.status) == (5, v3.GET_BOOKIE_INFO, EUA)
        assert (await wire.ask_v3(bookie_requests.add_request(6, 1, 0, KEY, stored(1, 0)))).status == EUA
        auth = v3.request(v3.AUTH, 8)
        auth.authRequest.authPluginName, auth.authRequest.payload = "BookieAuthZFactory", b""
        assert (await wire.ask_v3(v3.frame_of(auth))).status == EUA
        await handshake(wire, certificates(authority).context)  # a refusal is not the end
        await write_and_read(wire, 1)
        wire.close()
        wire = await Wire.connect(bookie)
        assert await wire.add(stored(1, 5)) == v2.V2Error.EUA
        assert await wire.read(1, 0) == v2.V2Error.EUA
        assert (await wire.ask(v2.read_request(1, -1, v2.FLAG_DO_FENCING, KEY)))[1] == v2.V2Error.EUA
        wire.send(v3.start_tls_request(1))  # no third protocol after the second
        assert await wire.closed()
        wire = await over_tls(bookie, certificates(authority))
        assert await wire.add(stored(1, 3)) == 0  # so the ledger was not fenced
        wire.close()


async def test_nobody_comes_in_without_a_trusted_certificate(authority: Authority, others: Authority) -> None:
    ca = str(authority.certificate)
    async with BookieMachines().serving(demanding(authority)) as bookie:
        with pytest.raises(TlsFailed, match="may demand a certificate, and none is set here"):
            await over_tls(bookie, certificates(authority, certificate="", key=""))
        with pytest.raises(TlsFailed, match=r"does not accept the certificate .*others.*tls\.crt"):
            await over_tls(bookie, certificates(others, trusted=ca))
        with pytest.raises(TlsFailed, match=r"its certificate is not accepted: .*others"):
            await over_tls(bookie, certificates(others))
        wire = await over_tls(bookie, certificates(authority))
        await write_and_read(wire, 1)
        wire.close()


async def test_a_client_may_insist_on_the_host_name(authority: Authority, tmp_path: Path) -> None:
    async with BookieMachines().serving(demanding(authority)) as bookie:
        with pytest.raises(TlsFailed, match=r"not accepted: .*127\.0\.0\.1"):
            await over_tls(bookie, certificates(authority, verify_hostname=True))
    ours = Authority(tmp_path / "ca")
    ours.folder("bookie", host="IP:127.0.0.1")
    async with BookieMachines().serving(demanding(ours)) as bookie:
        wire = await over_tls(bookie, certificates(ours, "bookie", verify_hostname=True))
        await write_and_read(wire, 1)
        wire.close()


async def test_without_tls_start_tls_is_a_bad_request(authority: Authority) -> None:
    async with BookieMachines().serving() as bookie:
        wire = await Wire.connect(bookie)
        answer = await wire.ask_v3(v3.start_tls_request(4))
        assert (answer.header.txnId, answer.status) == (4, EBADREQ)
        assert await wire.add(stored(1, 0)) == 0
        wire.close()
        with pytest.raises(TlsFailed, match="does not offer TLS; switch it on there, or off here"):
            await over_tls(bookie, certificates(authority))


async def test_start_tls_comes_first_and_once(authority: Authority) -> None:
    async with BookieMachines().serving(offering(authority)) as bookie:
        wire = await Wire.connect(bookie)
        assert (await wire.ask_v3(v3.bookie_info_request(1))).status == 0
        assert (await wire.ask_v3(v3.start_tls_request(2))).status == EBADREQ
        wire.close()
        wire = await over_tls(bookie, certificates(authority, certificate="", key=""))
        assert (await wire.ask_v3(v3.start_tls_request(2))).status == EBADREQ
        await write_and_read(wire, 1)
        wire.close()


@pytest.mark.parametrize("make", [offering, demanding])
async def test_bytes_that_come_too_early_end_the_connection(
    authority: Authority, make: Callable[[Authority], BookieConfig]
) -> None:
    async with BookieMachines().serving(make(authority)) as bookie:
        for more in (b"\x16\x03\x01", v3.bookie_info_request(2)):
            wire = await Wire.connect(bookie)
            wire.send(v3.start_tls_request(1), more)
            assert await wire.closed()
            assert not wire.frames


@pytest.mark.parametrize("make", [offering, demanding])
async def test_a_client_that_goes_during_the_handshake_harms_nobody(
    authority: Authority, make: Callable[[Authority], BookieConfig]
) -> None:
    async with BookieMachines().serving(make(authority)) as bookie:
        listener = listener_of(bookie)
        for sent in (b"", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n" * 20):
            failed = listener.handshakes_failed
            wire = await Wire.connect(bookie)
            assert (await wire.ask_v3(v3.start_tls_request(1))).status == 0
            wire.send(sent)
            await wire.writer.drain()
            wire.close()
            await eventually(lambda: listener.handshakes_failed == failed + 1 and not listener.waiting)  # noqa: B023
        wire = await over_tls(bookie, certificates(authority))
        await write_and_read(wire, 1)
        wire.close()


async def test_failed_handshakes_are_counted_and_the_log_says_who_it_was_and_why(
    authority: Authority, others: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    ca = str(authority.certificate)
    async with BookieMachines().serving(demanding(authority)) as bookie:
        listener = listener_of(bookie)

        async def failed_line(count: int) -> str:
            await eventually(lambda: listener.handshakes_failed == count and not listener.waiting)
            (line,) = (line for line in caplog.messages if "handshake with" in line)
            caplog.clear()
            listener.refusal_log._next_s = 0.0
            return line

        with pytest.raises(TlsFailed):
            await over_tls(bookie, certificates(others, trusted=ca))
        line = await failed_line(1)
        assert "('127.0.0.1', " in line
        assert "failed: its certificate is not accepted: unable to get local issuer certificate" in line
        with pytest.raises(TlsFailed):
            await over_tls(bookie, certificates(authority, certificate="", key=""))
        assert "peer did not return a certificate" in await failed_line(2)
        with pytest.raises(TlsFailed):
            await over_tls(bookie, certificates(others))  # the client does not trust the bookie
        assert "it ended the connection; it may not accept" in await failed_line(3)
        wire = await Wire.connect(bookie)
        assert (await wire.ask_v3(v3.start_tls_request(1))).status == 0
        wire.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await wire.closed()
        assert "http request" in await failed_line(4)
        wire = await Wire.connect(bookie)
        wire.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert await wire.closed()
        assert "it began without START_TLS" in await failed_line(5)
        samples = {sample.name: sample.value for sample in bookie.operations.metrics()}
        assert samples["magnetar_bookie_tls_handshakes_failed_total"] == 5
        assert samples["magnetar_bookie_refused_in_clear_total"] == 0


async def test_tls_without_start_tls_is_named_where_tls_is_offered_too(authority: Authority) -> None:
    async with BookieMachines().serving(offering(authority)) as bookie:
        wire = await Wire.connect(bookie)
        wire.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert await wire.closed()
        await eventually(lambda: listener_of(bookie).handshakes_failed == 1)


async def test_many_who_do_not_come_in_are_one_line_a_second(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    world = BookieMachines(ManualClock())
    async with world.serving(demanding(authority)) as bookie:
        listener = listener_of(bookie)

        async def ask_in_clear(count: int) -> list[str]:
            for _ in range(count):
                wire = await Wire.connect(bookie)
                assert await wire.read(1, 1) == EUA_V2
                wire.close()
            return [line for line in caplog.messages if "asks in clear text" in line]

        (line,) = await ask_in_clear(5)
        assert line.startswith("refusing ('127.0.0.1', ")
        assert line.endswith("this bookie demands TLS")
        assert isinstance(world.clock, ManualClock)
        world.clock.advance(1.5)
        _, line = await ask_in_clear(3)
        assert line.endswith("this bookie demands TLS (4 more like this since the last line)")
        assert listener.refused_in_clear == 8
        samples = {sample.name: sample.value for sample in bookie.operations.metrics()}
        assert samples["magnetar_bookie_refused_in_clear_total"] == 8


async def test_a_handshake_has_a_time_limit(authority: Authority) -> None:
    async with BookieMachines().serving(offering(authority)) as bookie:
        listener_of(bookie).handshake_s = 0.1
        wire = await Wire.connect(bookie)
        assert (await wire.ask_v3(v3.start_tls_request(1))).status == 0
        assert await wire.closed()


async def test_a_bookie_stops_while_somebody_is_in_the_handshake(authority: Authority) -> None:
    async with BookieMachines().serving(demanding(authority)) as bookie:
        silent = await Wire.connect(bookie)
        shaking = await Wire.connect(bookie)
        assert (await shaking.ask_v3(v3.start_tls_request(1))).status == 0
        await eventually(lambda: len(listener_of(bookie).waiting) == 2)
    assert await silent.closed()
    assert await shaking.closed()


async def test_who_is_refused_and_does_not_listen_is_not_read_on(authority: Authority) -> None:
    count = 60_000
    async with BookieMachines().serving(demanding(authority)) as bookie:
        wire = await Wire.connect(bookie)
        await eventually(lambda: len(listener_of(bookie).waiting) == 1)
        (handshake,) = listener_of(bookie).waiting
        # Else the system takes megabytes of answers.
        handshake._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        wire.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        wire.send(v2.read_request(1, 2) * count)
        await eventually(lambda: not handshake._transport.is_reading())
        await wire.until(count, PATIENCE_S)
        assert wire.frames == [v2.read_response(v2.V2Error.EUA, 1, 2, 0)[4:]] * count
        assert handshake._transport.is_reading()
        wire.close()


@pytest.mark.parametrize("junk", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff\x0a", b"\x00\x00\x00\x03\x0a\xff\xff"])
async def test_junk_in_the_handshake_ends_the_connection(authority: Authority, junk: bytes) -> None:
    for config in (offering(authority), demanding(authority)):
        async with BookieMachines().serving(config) as bookie:
            wire = await Wire.connect(bookie)
            wire.send(junk, b"\x00" * 8)
            assert await wire.closed()


async def test_an_auth_frame_without_authentication_is_answered_with_yes() -> None:
    async with BookieMachines().serving() as bookie:
        wire = await Wire.connect(bookie)
        auth = v3.request(v3.AUTH, 8)
        auth.authRequest.authPluginName, auth.authRequest.payload = "any", b"x"
        answer = await wire.ask_v3(v3.frame_of(auth))
        assert (answer.status, answer.authResponse.authPluginName) == (0, "AuthDisabledPlugin")
        wire.close()


# -- the bookie as a client of others


async def test_a_bookie_asks_itself_and_others_over_tls(authority: Authority) -> None:
    async with BookieMachines().serving(demanding(authority)) as bookie:
        sanity = await bookie.operations.sanity()
        assert sanity.passed, sanity.problems
        usage = await ask_disks(*bookie.address, certificates(authority, "bookie"))
        assert usage.total_bytes > 0
        with pytest.raises(ConnectionError, match="status 502"):
            await ask_disks(*bookie.address)


# -- settings


def test_one_setting_makes_the_port_demand_certificates() -> None:
    config = load(BookieConfig, {"tlsDirectory": "/etc/bookie"})
    assert config.access_rules == Rules(demand_tls=True)
    assert config.asks_for_certificates
    assert config.tls is not None
    assert config.tls.paths == ("/etc/bookie/tls.crt", "/etc/bookie/tls.key", "/etc/bookie/ca.crt")
    assert config.client_tls == config.tls
    assert load(BookieConfig, {}).tls is None


def test_apaches_settings_are_understood() -> None:
    config = load(
        BookieConfig,
        {
            "tlsProvider": "OpenSSL",
            "tlsProviderFactoryClass": APACHE_FACTORY,
            "tlsClientAuthentication": "true",
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": "/k",
            "tlsKeyStorePasswordPath": "/p",
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": "/t",
            "tlsCertificatePath": "/c",
            "tlsEnabledProtocols": "TLSv1.3,TLSv1.2",
            "bookieAuthProviderFactoryClass": ROLES,
            "authorizedRoles": "broker,auditor",
        },
        ignored=IGNORED_SETTINGS,
    )
    assert config.access_rules == Rules(roles=frozenset({"broker", "auditor"}))
    assert config.tls is not None
    assert config.tls.paths == ("/c", "/k", "/p", "/t")
    assert config.asks_for_certificates


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ({"tlsProviderFactoryClass": "com.x.Y"}, ("only org.apache.bookkeeper.tls.TLSContextFactory",)),
        ({"tlsProviderFactoryClass": APACHE_FACTORY}, ("tlsCertificatePath is not set", "tlsKeyStore is not set")),
        (
            {"tlsProviderFactoryClass": APACHE_FACTORY, "tlsKeyStoreType": "JKS", "tlsKeyStore": "/a/b.jks"},
            ("tlsKeyStoreType=JKS is not supported", "keytool -importkeystore -srckeystore /a/b.jks"),
        ),
        ({"tlsProviderFactoryClass": APACHE_FACTORY, "tlsKeyStore": "/a/b.p12"}, ("looks like a Java key store",)),
        ({"tlsClientAuthentication": "true"}, ("has no effect without",)),
        ({"tlsDirectory": "/d", "tlsKeyStore": "/k"}, ("exclude each other",)),
        ({"tlsDirectory": "/d", "tlsEnabledProtocols": "TLSv1,TLSv1.2"}, ("TLSv1 is not offered",)),
        ({"tlsDirectory": "/d", "tlsEnabledCipherSuites": "TLS_AES_128_GCM_SHA256"}, ("of TLS 1.3",)),
        ({"bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"}, ("SASL",)),
        ({"bookieAuthProviderFactoryClass": ROLES}, ("needs authorizedRoles", "needs certificates of the clients")),
        ({"authorizedRoles": "x"}, ("has no effect without bookieAuthProviderFactoryClass",)),
        ({"clientAuthProviderFactoryClass": "org.x.Y"}, ("clientAuthProviderFactoryClass=org.x.Y is not supported",)),
    ],
)
def test_what_cannot_be_is_refused_by_name(values: dict[str, str], texts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError) as error:
        load(BookieConfig, values, ignored=IGNORED_SETTINGS)
    for text in texts:
        assert text in str(error.value)


def test_javas_names_of_suites_become_openssls() -> None:
    suites = (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_RSA_WITH_AES_128_CBC_SHA256",
        "ECDHE-ECDSA-AES128-GCM-SHA256",
    )
    names = openssl_ciphers("s", suites)
    assert (
        names == "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:AES128-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256"
    )
    known = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    known.set_ciphers(names)
    assert {suite["name"] for suite in known.get_ciphers()} >= set(names.split(":"))


async def test_files_that_cannot_be_used_stop_the_start_with_their_names(authority: Authority, tmp_path: Path) -> None:
    own, broker = authority.directory / "bookie", authority.directory / "broker"
    text = tmp_path / "text"
    text.write_text("no certificate")
    good = directory_files(str(own), "tlsDirectory")
    for files, match in (
        (replace(good, key=str(broker / "tls.key")), "the key does not belong to the certificate"),
        (replace(good, key=str(tmp_path / "none")), r"tlsDirectory=.*cannot read the key .*none: No such file"),
        (replace(good, certificate=str(text)), "cannot be used: "),
        (replace(good, trusted=str(text)), "no PEM certificates in .*text"),
        (replace(good, trusted=""), "needs a file of trusted certificates, and none is set"),
        (replace(good, ciphers="NO-SUCH-SUITE"), "none of the suites NO-SUCH-SUITE"),
        (replace(good, ciphers="AES128-SHA256", protocols=("TLSv1.3",)), "TLSv1.2 only"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            server_context(files, client_certificates=True)
    async with BookieMachines().serving() as bookie:
        assert bookie.address[1]
    with pytest.raises(ConfigurationError, match="cannot read the certificate"):
        async with BookieMachines().serving(tls_directory=str(tmp_path)):
            pass


def test_a_key_may_have_a_password(tmp_path: Path) -> None:
    made = Authority(tmp_path / "ca").folder("bookie", password="secret")
    files = directory_files(str(made), "tlsDirectory")
    with pytest.raises(ConfigurationError, match="the password is wrong"):
        server_context(files, client_certificates=False)
    server_context(replace(files, key_password_file=str(made / "password")), client_certificates=False)
    (made / "password").write_text("wrong")
    with pytest.raises(ConfigurationError, match="the password is wrong"):
        server_context(replace(files, key_password_file=str(made / "password")), client_certificates=False)


def test_changed_files_are_taken_and_damaged_ones_are_not(tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ca")
    folder, newer = ours.folder("old"), ours.folder("newer-name")
    clock = ManualClock()
    held = Certificates(directory_files(str(folder), "tlsDirectory"), client_context, clock)
    first = held.context
    (folder / "tls.crt").write_text("half written")
    assert held.context is first
    clock.advance(301)
    assert held.context is first
    for name in ("tls.crt", "tls.key"):
        (folder / name).write_bytes((newer / name).read_bytes())
    clock.advance(301)
    second = held.context
    assert second is not first
    clock.advance(301)
    assert held.context is second


# -- the rules


@pytest.mark.parametrize(
    ("units", "role"),
    [
        (["0:broker"], "broker"),
        (["0: broker , other;1:east"], "broker"),
        (["1:east;0:broker"], "broker"),
        (["1:east"], None),
        (["broker"], None),
        (["0:"], None),
        ([], None),
        (["1:east", "0:broker"], None),  # the first OU counts
    ],
)
def test_the_role_stands_in_the_first_unit(units: list[str], role: str | None) -> None:
    subject = [(("countryName", "DE"),), *((("organizationalUnitName", unit),) for unit in units)]
    assert role_of([*subject, (("commonName", "x"),)]) == role


def test_rules() -> None:
    certificate = {"subject": ((("organizationalUnitName", "0:broker"),),)}
    assert Rules().admits_in_clear
    assert not Rules(demand_tls=True).admits_in_clear
    assert not Rules(roles=frozenset()).admits_in_clear
    assert Rules(demand_tls=True).refusal(None) is None
    roles = Rules(roles=frozenset({"broker", "auditor"}))
    assert roles.refusal(certificate) is None
    assert "no certificate" in str(roles.refusal(None))
    assert "no role" in str(roles.refusal({"subject": ()}))
    assert "'broker' is not among authorizedRoles (x)" in str(Rules(roles=frozenset({"x"})).refusal(certificate))


def test_refusals_have_the_request_s_form() -> None:
    def refused(frame: bytes) -> bytes:
        return refusal_of(memoryview(frame)[4:], False)

    entry = stored(3, 4)
    assert refused(v2.add_request_head(0, KEY, len(entry)) + entry) == v2.add_response(102, 3, 4)
    assert refused(v2.read_request(3, 4)) == v2.read_response(102, 3, 4, 0)
    answer = pb.Response.FromString(refused(bookie_requests.force_ledger_request(9, 3))[4:])
    assert (answer.header.operation, answer.header.txnId, answer.status) == (v3.FORCE_LEDGER, 9, 502)
    with pytest.raises(MalformedFrame, match="not admitted"):
        refused(v2.batch_read_request(3, 4, 1, 10, 1000))


def test_stores_of_java_are_known_by_their_names() -> None:
    assert store_problem("t", "PEM", "p", "/x.pem") is None
    assert store_problem("t", "pem", "p", "/x.crt") is None
    assert "expected PEM" in str(store_problem("t", "BKS", "p", "/x"))
    assert TlsFiles(origin="").paths == ()


def listener_of(bookie: Bookie) -> TlsListener:
    listener = bookie.parts.tls_listener
    assert listener is not None
    return listener
