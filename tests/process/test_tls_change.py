"""TLS between brokers and bookies is introduced in a running cluster as the operator's page says; no write fails."""

import asyncio
import signal
from pathlib import Path

import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import HOST, Cluster, Member
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire.framing import LENGTH
from magnetar_core.security.tls.files import APACHE_FACTORY
from tests.support.processes import Load, cluster_of, prepare
from tests.support.tls_files import Authority
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

TOPIC = "persistent://public/default/load"


class Settings:
    """The configuration of one server, with what is added to it for a round."""

    def __init__(self, cluster: Cluster, member: Member) -> None:
        self._cluster = cluster
        self._member = member
        self._path = cluster.directory / member.name / f"{member.kind}.conf"
        self._original = self._path.read_text()

    def restart_with(self, **added: str) -> None:
        """Stop the server, as an operator does, and start it with *added* beside its first settings."""
        self._path.write_text(self._original + "".join(f"{name}={value}\n" for name, value in added.items()))
        self._cluster.kill(self._member.name, signal.SIGTERM)
        self._cluster.start(self._member.name)


async def asked_in_clear(bookie: Member) -> int:
    """What a bookie answers to a read in clear text."""
    reader, writer = await asyncio.open_connection(HOST, bookie.port)
    try:
        writer.write(v2.read_request(2**40, 0))
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return v2.parse_response(memoryview(await reader.readexactly(length)))[1]
    finally:
        writer.close()


@pytest.mark.long("eight servers are started anew, one after the other, under load")
def test_a_cluster_goes_over_to_tls_in_three_rounds_while_it_is_written_to(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    for_bookies, for_brokers = authority.folder("bookie", unit="0:bookie"), authority.folder("broker", unit="0:broker")
    with cluster_of(tmp_path / "cluster") as cluster:
        admin = AdminClient(cluster.admin_urls)
        prepare(admin)
        admin.create_topic(TOPIC, 2)
        bookies, brokers = cluster.members("bookie"), cluster.members("broker")
        settings = {member.name: Settings(cluster, member) for member in (*bookies, *brokers)}
        # Slowly: nine restarts on a busy machine must not be longer than the load.
        with Load(cluster.service_url, TOPIC, pause_s=0.03) as load:
            load.wait_for(1_000)
            for bookie in bookies:
                settings[bookie.name].restart_with(
                    tlsProviderFactoryClass=APACHE_FACTORY,
                    tlsCertificatePath=str(for_bookies / "tls.crt"),
                    tlsKeyStore=str(for_bookies / "tls.key"),
                )
                load.wait_for(1_000)
            for broker in brokers:
                settings[broker.name].restart_with(bookkeeperTLSDirectory=str(for_brokers))
                load.wait_for(1_000)
            for bookie in bookies:
                assert asyncio.run(asked_in_clear(bookie)) == v2.V2Error.ENOLEDGER
                settings[bookie.name].restart_with(
                    tlsDirectory=str(for_bookies),
                    bookieAuthProviderFactoryClass="org.apache.bookkeeper.tls.BookieAuthZFactory",
                    authorizedRoles="broker,bookie",
                )
                load.wait_for(1_000)
            for bookie in bookies:
                assert asyncio.run(asked_in_clear(bookie)) == v2.V2Error.EUA
            load.finish()
            load.check()
