"""`magnetar standalone` is killed, stopped, and started with wrong settings, as people do it."""

import signal
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import Final

import pulsar
import pytest

from magnetar.inspect.broker_admin import AdminClient
from tests.support.processes import PATIENCE_S, Load, Standalone, client_of, prepare, until
from tests.support.shell import run_command

pytestmark = pytest.mark.process

TOPIC: Final = "persistent://public/default/load"
ROUNDS: Final = 2


def refused(command: list[str]) -> tuple[int, str]:
    """Exit code and words of a command that does not start."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


def test_it_is_killed_under_load_again_and_again(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server:
        prepare(AdminClient(server.admin_url))
        with Load(server.service_url, TOPIC) as load:
            for _ in range(ROUNDS):
                load.wait_for(1_000)
                with load.rush():
                    server.stop(signal.SIGKILL)
                server.start()
            load.wait_for(2_500)
            load.finish()
            load.check()
        assert server.stop(signal.SIGINT) == 0
        server.start()
        load.check(server.service_url)


def test_messages_are_as_large_as_the_setting_says_also_after_a_kill(tmp_path: Path) -> None:
    settings = tmp_path / "settings.conf"
    settings.write_text("maxMessageSize=20971520\n")
    sizes = [1, 6_000_000, 100, 20_900_000]
    with Standalone(tmp_path / "data", "--config", str(settings)) as server:
        for number, size in enumerate(sizes):
            with client_of(server.service_url) as client:
                client.create_producer(TOPIC, batching_enabled=False).send(bytes([number]) * size)
            if size > 5_000_000:
                server.stop(signal.SIGKILL)
                server.start()
        with client_of(server.service_url) as client:
            reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
            for number, size in enumerate(sizes):
                assert reader.read_next(20_000).data() == bytes([number]) * size
            with pytest.raises(pulsar.MessageTooBig):
                client.create_producer(TOPIC, batching_enabled=False).send(bytes(21_000_000))


def test_individual_acknowledgements_survive_a_clean_stop_and_repeat_little_after_a_kill(tmp_path: Path) -> None:
    def receive(consumer: pulsar.Consumer, least: int) -> dict[int, pulsar.Message]:
        """All messages that arrive now, *least* or more."""
        found: dict[int, pulsar.Message] = {}
        while True:
            try:
                message = consumer.receive(10_000 if len(found) < least else 200)
            except pulsar.Timeout:
                return found
            number = int(message.data())
            assert number not in found, f"{number} came twice to one consumer"
            found[number] = message

    def subscribe(client: pulsar.Client) -> pulsar.Consumer:
        return client.subscribe(
            TOPIC,
            "s",
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            batch_index_ack_enabled=True,
        )

    count = 600
    with Standalone(tmp_path / "data") as server:
        with client_of(server.service_url) as client:
            consumer = subscribe(client)
            single = client.create_producer(TOPIC)
            for number in range(count // 2):
                single.send_async(b"%d" % number, lambda *_: None)
            single.flush()
            batched = client.create_producer(TOPIC, batching_enabled=True, batching_max_messages=10)
            for number in range(count // 2, count):
                batched.send_async(b"%d" % number, lambda *_: None)
            batched.flush()
            messages = receive(consumer, count)
            assert sorted(messages) == list(range(count))
            # Holes everywhere; every tenth batch is acknowledged as a whole.
            first = {number for number in range(count) if number % 3 == 1 or number // 10 % 10 == 4}
            for number in first:
                consumer.acknowledge(messages[number])
            consumer.close()
        assert server.stop(signal.SIGINT) == 0
        server.start()
        with client_of(server.service_url) as client:
            consumer = subscribe(client)
            left = set(range(count)) - first
            messages = receive(consumer, len(left))
            assert set(messages) == left
            second = {number for number in left if number % 2}
            for number in second:
                consumer.acknowledge(messages[number])
            consumer.close()
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        server.start()
        with client_of(server.service_url) as client:
            again = set(receive(subscribe(client), len(left - second)))
            assert left - second <= again  # nothing unacknowledged is lost
            assert again <= left  # and what had survived the clean stop stays acknowledged


def test_what_only_compaction_has_comes_again_after_an_unload_and_a_kill_until_it_is_acknowledged(
    tmp_path: Path,
) -> None:
    path = f"/admin/v2/{TOPIC.replace('://', '/')}"
    keys = [f"k{number}" for number in range(10)]

    def subscribe(client: pulsar.Client) -> pulsar.Consumer:
        earliest = pulsar.InitialPosition.Earliest
        return client.subscribe(TOPIC, "s", is_read_compacted=True, initial_position=earliest)

    def take(client: pulsar.Client, expected: list[str], *acknowledged: int) -> None:
        consumer = subscribe(client)
        found = [consumer.receive(10_000) for _ in expected]
        assert [message.partition_key() for message in found] == expected
        with pytest.raises(pulsar.Timeout):
            consumer.receive(100)
        for at in acknowledged:
            consumer.acknowledge(found[at])
        consumer.close()

    with Standalone(tmp_path / "data") as server:
        admin = AdminClient(server.admin_url)
        admin.set_retention("public/default", minutes=0, megabytes=0)
        with client_of(server.service_url) as client:
            client.subscribe(TOPIC, "holds back trimming").close()
            producer = client.create_producer(TOPIC, batching_enabled=False)
            for number in range(20):
                producer.send(b"%d" % number, partition_key=keys[number % 10])
            producer.close()
            admin.call("PUT", f"{path}/compaction")
            until(lambda: admin.call("GET", f"{path}/compaction")["status"] == "SUCCESS", "it is compacted")
            admin.call("DELETE", f"{path}/subscription/holds%20back%20trimming")
            admin.call("PUT", f"{path}/unload")  # which closes the ledger
            admin.call("POST", f"{path}/trim")
            until(lambda: admin.call("GET", f"{path}/internalStats")["numberOfEntries"] == 0, "it is trimmed")
            take(client, keys)
            admin.call("PUT", f"{path}/unload")
            take(client, keys, 0, 3, 4)
            admin.call("POST", f"{path}/trim")  # which stores the acknowledgements first
        server.stop(signal.SIGKILL)
        server.start()
        with client_of(server.service_url) as client:
            take(client, ["k1", "k2", *keys[5:]], 0, 1)
        assert server.stop(signal.SIGINT) == 0
        server.start()
        with client_of(server.service_url) as client:
            take(client, keys[5:])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_ends_it_with_exit_code_0(tmp_path: Path, number: signal.Signals) -> None:
    with Standalone(tmp_path / "data") as server, Load(server.service_url, TOPIC) as load:
        load.wait_for(500)
        assert server.stop(number) == 0
        assert "Traceback" not in server.errors
        assert "ERROR" not in server.errors
    wide = [str(path) for path in (tmp_path / "data").rglob("*") if path.stat().st_mode & 0o007]
    assert wide == [], "others may not read what is stored, RocksDB's files neither"


def test_an_entry_log_that_is_gone_is_named_with_topic_and_count_and_the_rest_is_served(tmp_path: Path) -> None:
    lost, other = "persistent://public/default/lost", "persistent://public/default/other"
    settings, bookie = tmp_path / "settings.conf", tmp_path / "bookie.conf"
    settings.write_text("autoSkipNonRecoverableData=true\n")
    place = tmp_path / "data/bookie-1"
    bookie.write_text(f"journalDirectories={place / 'journal'}\nledgerDirectories={place / 'ledgers'}\n")

    def send(topics: list[str], numbers: range) -> None:
        with client_of(server.service_url) as client:
            for topic in topics:
                producer = client.create_producer(topic, batching_enabled=False)
                for number in numbers:
                    producer.send_async(b"%d" % number, lambda *_: None)
                producer.flush()

    def received(topic: str, count: int) -> list[int]:
        with client_of(server.service_url) as client:
            consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
            return [int(consumer.receive(20_000).data()) for _ in range(count)]

    with Standalone(tmp_path / "data", "--config", str(settings)) as server:
        send([lost], range(100))
        assert server.stop(signal.SIGTERM) == 0
        server.start()
        send([lost, other], range(100, 120))
        assert server.stop(signal.SIGTERM) == 0
        (place / "ledgers/current/0.log").rename(tmp_path / "0.log")
        server.start()
        assert received(other, 20) == received(lost, 20) == list(range(100, 120))
        found = run_command("doctor", "--admin-url", server.admin_url)
        assert (found.returncode, found.stderr) == (2, "")
        assert f"{lost}: 100 entries are lost, they stood in 0.log of bookie bookie-1, which is missing" in found.stdout
        with urllib.request.urlopen(f"{server.admin_url}/metrics") as answer:
            assert 'magnetar_bookie_lost_logs{bookie="bookie-1"} 1.0' in answer.read().decode()
        assert server.stop(signal.SIGTERM) == 0
        assert f"{place / 'ledgers/current/0.log'} is missing" in server.errors
    found = run_command("bookie", "rebuild-index", "--config", str(bookie), "--yes")
    assert found.returncode == 2
    assert "0.log is missing; entries are missing here" in found.stderr
    assert run_command("bookie", "rebuild-index", "--config", str(bookie), "--yes").returncode == 0, "it was said"
    (tmp_path / "0.log").rename(place / "ledgers/current/0.log")
    assert run_command("bookie", "rebuild-index", "--config", str(bookie), "--yes").returncode == 0
    with Standalone(tmp_path / "data", "--config", str(settings)) as server:
        until(lambda: "are lost" not in run_command("doctor", "--admin-url", server.admin_url).stdout, "it is back")
        server.stop(signal.SIGTERM)
        assert "is closed: its entries can be read again" in server.errors


def test_a_signal_while_it_starts_ends_it_with_exit_code_0(tmp_path: Path) -> None:
    server = Standalone(tmp_path / "data")
    process = subprocess.Popen(server.command((0, 0, 0)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not (tmp_path / "data" / "lock").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "Traceback" not in errors
    with server:  # the folder is as good as before
        pass


def test_a_second_one_is_refused(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server:
        code, words = refused(server.command((0, 0, 0)))
        assert code == 2
        assert f"{tmp_path / 'data'} is in use" in words
        assert "--data" in words
        assert len(words.splitlines()) == 1

        other = Standalone(tmp_path / "other")
        web_port = int(server.admin_url.rpartition(":")[2])
        for ports, option in [((server.port, 0, 0), "--port"), ((0, web_port, 0), "--web-port")]:
            code, words = refused(other.command(ports))
            assert code == 2
            assert f":{ports[0] or ports[1]}" in words
            assert option in words


def test_a_bookie_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, words = refused(Standalone(tmp_path / "data").command((0, 0, port)))
    assert code == 2
    assert str(port) in words
    assert "--bookie-port" in words


def test_a_port_of_the_topic_api_that_is_asked_for_and_taken_is_named(tmp_path: Path) -> None:
    """Without the option any free port is taken instead."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, words = refused(Standalone(tmp_path / "data", "--grpc-port", str(port)).command((0, 0, 0)))
    assert code == 2
    assert f":{port}: it is in use" in words
    assert "--grpc-port" in words


def test_an_unknown_setting_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    config = tmp_path / "standalone.conf"
    config.write_text("# mine\nbrokerServicePrt=1234\nmanagedLedgerDefaultAckQuorum=none\n")
    code, words = refused(Standalone(tmp_path / "data", "--config", str(config)).command((0, 0, 0)))
    assert code == 1
    assert "brokerServicePrt" in words
    assert "did you mean brokerServicePort?" in words
    assert "managedLedgerDefaultAckQuorum=none" in words  # every problem at once
    assert str(config) in words
    assert not (tmp_path / "data").exists()
