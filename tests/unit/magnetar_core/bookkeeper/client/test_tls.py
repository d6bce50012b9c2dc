"""The ledger client, and a bookie's repair, over TLS to this project's own bookies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie.bookie import Bookie
from bookie.maintenance.peers import PeerSource
from bookie.maintenance.repair import RepairUnavailable
from broker.settings.config import BrokerConfig, load_broker_config
from connectors.spark.options.read import parse_options
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.errors import BookKeeperError, NotEnoughBookies, NoTls, Unauthorized
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.bookkeeper.wire.entry import DigestType, EntryCodec
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import KIB, MIB, ConfigurationError
from magnetar_core.security.tls.contexts import Certificates, client_context
from magnetar_core.security.tls.files import TlsFiles, directory_files, validities
from tests.support.serving import CONFIG, BookieMachines
from tests.support.tls_files import Authority

pytestmark = pytest.mark.both_loops


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("tls") / "ours")
    made.folder("server")
    made.folder("client")
    made.folder("late", days="-1")
    return made


def files_of(authority: Authority, name: str = "client") -> TlsFiles:
    return directory_files(str(authority.directory / name), "tlsDirectory")


class LaterClock(LoopClock):
    """The wall clock, some days ahead."""

    days = 0.0
    seconds = 0.0

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self.days * 86_400_000)

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


async def test_an_expired_certificate_is_refused_at_the_start(authority: Authority) -> None:
    folder = authority.directory / "late"
    with pytest.raises(ConfigurationError, match=rf"certificate {folder}/tls\.crt expired on 20.* UTC; put a new one"):
        Certificates(files_of(authority, "late"), client_context, LoopClock())
    with pytest.raises(ConfigurationError, match="expired on"):
        async with bookies(1, str(folder)):
            raise AssertionError("the bookie has started")
    clock = LaterClock()
    clock.days = 3  # beyond the life of the authority's own
    only_trusted = replace(files_of(authority), certificate="", key="")
    with pytest.raises(ConfigurationError, match=r"all trusted certificates in .*ca\.crt have expired"):
        Certificates(only_trusted, client_context, clock)


async def test_a_certificate_that_expires_later_is_reported(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    clock = LaterClock()
    held = Certificates(files_of(authority), client_context, clock)
    assert held.context is not None
    assert caplog.records == []
    clock.days, clock.seconds = 2.5, 1_000.0
    assert held.context is not None
    (record,) = caplog.records
    assert "new connections will fail: " in record.getMessage()
    assert "expired on" in record.getMessage()
    clock.days = 1.95
    Certificates(files_of(authority), client_context, clock)
    assert "expires on" in caplog.records[-1].getMessage()


def test_the_dates_of_certificates_are_read_from_their_files(authority: Authority) -> None:
    ours, theirs = (path.read_text() for path in (authority.directory / "client" / "tls.crt", authority.certificate))
    (own,) = validities(ours)
    assert (own.end - own.begin).days == 2
    assert len(validities(ours + "text between" + theirs)) == 2
    damaged = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    assert validities(damaged + ours) == [own]
    assert validities("") == []


@asynccontextmanager
async def bookies(count: int, tls_directory: str, **changes: Any) -> AsyncIterator[tuple[BookieMachines, list[Bookie]]]:
    """Bookies of one cluster, each with its own disk."""
    worlds = [BookieMachines() for _ in range(count)]
    store = worlds[0].store
    await initialise_cluster(store)
    made: list[Bookie] = []
    try:
        for number, world in enumerate(worlds):
            world.store = store.session()
            config = replace(CONFIG, bookie_id=f"bookie-{number}", tls_directory=tls_directory, **changes)
            made.append(world.bookie(config))
            await made[-1].start()
        worlds[0].store = store
        yield worlds[0], made
    finally:
        for bookie in made:
            await bookie.stop()


@asynccontextmanager
async def client_of(
    world: BookieMachines, tls: TlsFiles | None, hold_adds_s: float = 30.0
) -> AsyncIterator[BookKeeper]:
    client = BookKeeper(world.store.session(), LoopClock(), ClientConfig(tls=tls, hold_adds_s=hold_adds_s))
    await client.open()
    try:
        yield client
    finally:
        await client.close()


async def test_ledgers_are_written_read_and_recovered_over_tls(authority: Authority) -> None:
    payloads = [b"", *(b"entry %d " % number + bytes(number % 75 * 280) for number in range(1, 100))]
    async with (
        bookies(4, str(authority.directory / "server")) as (world, running),
        client_of(world, files_of(authority)) as client,
    ):
        handle = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        handle.append(payloads[:50])
        await handle.wait_for(49)
        victim = next(one for one in running if one.bookie_id == handle.metadata.last_segment.ensemble[1])
        await victim.stop()
        handle.append(payloads[50:])
        await handle.wait_for(99)
        listed = await client.entry_list(handle.metadata.last_segment.ensemble[0], handle.ledger_id)
        assert listed == [(0, 0, 100, 0)]
        assert victim.bookie_id not in handle.metadata.last_segment.ensemble
        async with client_of(world, files_of(authority)) as other:
            reading = await other.open_ledger(handle.ledger_id, recovery=True)
            assert reading.last_add_confirmed == 99
            assert [bytes(entry.payload) for entry in await reading.read(0, 99)] == payloads
            batch = await reading.read_batch(0, 25, 1_000_000)
            assert [bytes(entry.payload) for entry in batch] == payloads[: len(batch)]
            assert batch


async def test_large_and_small_entries_over_tls(authority: Authority) -> None:
    payloads = [bytes([number]) * size for number, size in enumerate((1, MIB, 0, 129 * KIB, 2 * MIB, 7))]
    async with (
        bookies(1, str(authority.directory / "server")) as (world, _),
        client_of(world, files_of(authority)) as client,
    ):
        handle = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        for payload in payloads:
            await asyncio.wait_for(handle.add(payload), 30)
        await handle.close()
        reading = await client.open_ledger(handle.ledger_id, recovery=False)
        for _ in range(2):
            found = await asyncio.wait_for(reading.read(0, len(payloads) - 1), 30)
            assert [entry.payload for entry in found] == payloads


async def _failure(world: BookieMachines, tls: TlsFiles | None) -> BookKeeperError:
    async with client_of(world, tls) as client:
        handle = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        with pytest.raises(BookKeeperError) as error:
            await asyncio.wait_for(handle.add(b"x"), 30)
        return error.value


async def _read_failure(world: BookieMachines, ledger_id: int, tls: TlsFiles | None) -> str:
    async with client_of(world, tls) as client:
        with pytest.raises(BookKeeperError) as error:
            await client.open_ledger(ledger_id, recovery=True)
        return str(error.value)


async def test_who_does_not_come_in_hears_why(authority: Authority, tmp_path: Path) -> None:
    others = Authority(tmp_path / "others")
    others.folder("client")
    async with bookies(1, str(authority.directory / "server")) as (world, _):
        clear = await _failure(world, None)
        assert isinstance(clear, Unauthorized)
        assert "the bookie demands TLS" in str(clear)
        async with client_of(world, files_of(authority)) as client:
            handle = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await handle.add(b"x")
            ledger_id = handle.ledger_id
            nothing = replace(files_of(authority), certificate="", key="")
            assert "may demand a certificate, and none is set here" in await _read_failure(world, ledger_id, nothing)
            foreign = replace(files_of(others), trusted=str(authority.certificate))
            assert "does not accept the certificate" in await _read_failure(world, ledger_id, foreign)
            assert "its certificate is not accepted" in await _read_failure(world, ledger_id, files_of(others))
            await handle.add(b"y")  # and nobody of them has fenced it


async def test_a_client_with_tls_never_goes_on_in_clear(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async with bookies(1, "") as (world, _), client_of(world, files_of(authority), hold_adds_s=0) as client:
        handle = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        with pytest.raises(NotEnoughBookies, match="no bookie is left"):
            await asyncio.wait_for(handle.add(b"x"), 30)
        assert "no TLS connection to bookie bookie-0: it does not offer TLS" in caplog.text
        connection = client._open_pool().get("bookie-0", 0)
        with pytest.raises(NoTls, match="does not offer TLS; switch it on there, or off here"):
            await connection.read(handle.ledger_id, 0)


async def test_files_that_cannot_be_used_are_told_when_the_client_opens(tmp_path: Path) -> None:
    world = BookieMachines()
    await initialise_cluster(world.store)
    client = BookKeeper(world.store, LoopClock(), ClientConfig(tls=directory_files(str(tmp_path), "tlsDirectory")))
    with pytest.raises(ConfigurationError, match=r"cannot read the file of trusted certificates .*ca\.crt"):
        await client.open()


async def test_a_bookie_repairs_from_others_over_tls(authority: Authority) -> None:
    async with bookies(2, str(authority.directory / "server")) as (world, _):
        async with client_of(world, files_of(authority)) as client:
            handle = await client.create_ledger(
                ensemble_size=2, write_quorum=2, ack_quorum=2, digest_type=DigestType.CRC32C
            )
            await handle.add(b"precious")
            await handle.close()
        held = Certificates(files_of(authority), client_context, LoopClock())
        for certificates, comes in ((held, True), (None, False)):
            source = PeerSource(world.store, "/ledgers", "bookie-0", LoopClock(), certificates)
            try:
                if comes:
                    entry = await source.read_entry(handle.ledger_id, handle.metadata, 0)
                    assert entry is not None
                    opened = EntryCodec(DigestType.CRC32C, b"").open(entry, handle.ledger_id, 0)
                    assert bytes(opened.payload) == b"precious"
                else:
                    with pytest.raises(RepairUnavailable, match="refused with 102"):
                        await source.read_entry(handle.ledger_id, handle.metadata, 0)
            finally:
                source.close()


# -- settings of those who use the client


def test_a_broker_has_one_setting_and_apaches() -> None:
    assert BrokerConfig().bookie_tls is None
    one = load_broker_config({"bookkeeperTLSDirectory": "/etc/broker"}).bookie_tls
    assert one is not None
    assert one.paths == ("/etc/broker/tls.crt", "/etc/broker/tls.key", "/etc/broker/ca.crt")
    apache = {
        "bookkeeperTLSProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "bookkeeperTLSClientAuthentication": "true",
        "bookkeeperTLSKeyFileType": "PEM",
        "bookkeeperTLSTrustCertTypes": "PEM",
        "bookkeeperTLSKeyStorePasswordPath": "",
        "bookkeeperTLSTrustStorePasswordPath": "",
        "bookkeeperTLSKeyFilePath": "/k",
        "bookkeeperTLSCertificateFilePath": "/c",
        "bookkeeperTLSTrustCertsFilePath": "/t",
        "bookkeeperTlsCertFilesRefreshDurationSeconds": "60",
        "bookkeeper_tlsHostnameVerificationEnabled": "true",
    }
    same = load_broker_config(apache).bookie_tls
    assert same is not None
    assert (same.paths, same.refresh_s, same.verify_hostname) == (("/c", "/k", "/t"), 60, True)
    assert load_broker_config({**apache, "bookkeeperTLSClientAuthentication": "false"}).bookie_tls is None


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"bookkeeperTLSClientAuthentication": "true"}, "bookkeeperTLSTrustCertsFilePath is not set"),
        ({"bookkeeperTLSClientAuthentication": "true", "bookkeeperTLSKeyFileType": "JKS"}, "KeyFileType=JKS is not"),
        ({"bookkeeperTLSClientAuthentication": "true", "bookkeeperTLSProviderFactoryClass": "x.Y"}, "only org.apache"),
        ({"bookkeeperTLSClientAuthentication": "true", "bookkeeperTLSDirectory": "/d"}, "exclude each other"),
        ({"bookkeeperClientAuthenticationPlugin": "x.Y"}, "by its certificate"),
    ],
)
def test_what_a_broker_cannot_do_is_refused_by_name(values: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        load_broker_config(values)


def test_sparks_option_is_the_folder() -> None:
    options = parse_options({"metadata.url": "zk:a:1", "topic": "t", "bookkeeper.tlsDirectory": "/etc/spark"})
    assert options.tls_directory == "/etc/spark"
