"""A bookie loses its disks while topics are written, and gets empty ones, as the operator's page describes."""

import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator

import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster, ClusterError, Member
from magnetar.testing.servers import new_namespace
from tests.support.processes import Load, bookies_of, cluster_of, prepare, until
from tests.support.shared_cluster import BROKER_SETTINGS, heal
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


def metric(bookie: Member, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{bookie.web_port}/metrics") as answer:
        found = re.search(rf"^magnetar_bookie_{name}\{{.*\}} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("disks")
    with cluster_of(folder, brokers=1, auto_recovery=False, broker_settings=BROKER_SETTINGS) as made:
        yield made


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """The bookies have their settings again afterwards."""
    paths = [_cluster.directory / member.name / "bookie.conf" for member in _cluster.members("bookie")]
    settings = {path: path.read_text() for path in paths}
    yield heal(_cluster)
    for path, text in settings.items():
        path.write_text(text)


@pytest.mark.long("three times a bookie copies back what it had; tests/process/test_replaced_bookie.py does so once")
@pytest.mark.parametrize("lost", [("ledgers",), ("journal",), ("journal", "ledgers")], ids=" and ".join)
def test_a_bookie_with_a_new_disk_is_refused_until_told_and_copies_back_what_it_had(
    cluster: Cluster, lost: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    namespace = new_namespace(cluster.admin_urls, request.node.name)
    topic = f"persistent://{namespace}/load"
    admin = AdminClient(cluster.admin_urls)
    prepare(admin, namespace)
    admin.create_topic(topic, 0)
    with Load(cluster.service_url, topic) as load:
        load.wait_for(3_000)
        names = bookies_of(cluster, topic)
        victim, partner = cluster.member(names[0]), names[1]
        cluster.kill(victim.name, signal.SIGKILL)
        load.wait_for(1_000)
        place = cluster.directory / victim.name
        for name in lost:
            shutil.rmtree(place / name)
            (place / name).mkdir()
        with pytest.raises(ClusterError, match="dataIntegrityChecking=true"):
            cluster.start(victim.name)
        with (place / "bookie.conf").open("a") as settings:
            settings.write("dataIntegrityChecking=true\n")
        cluster.start(victim.name)
        until(lambda: metric(victim, "integrity_ledgers_left") == 0, "every copy is checked")
        if "ledgers" in lost and "journal" in lost:
            assert metric(victim, "integrity_copied_entries_total") > 0
        assert metric(victim, "integrity_lost_entries_total") == 0
        load.finish()
        # From here on only the copies that came back tell of the beginning: no other bookie, no broker's memory.
        cluster.kill(partner)
        cluster.kill("broker-1")
        cluster.start("broker-1")
        load.check()
