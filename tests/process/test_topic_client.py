"""The topic client in processes of its own: forks, exits, what stands on stderr, and servers that are held up."""

import collections
import concurrent.futures
import contextlib
import re
import subprocess
import sys
import textwrap

import pulsar
import pytest

import magnetar
from magnetar.client.errors import ProducerFenced
from magnetar.client.values import partition_of_key
from magnetar.testing.servers import TopicPlace
from tests.support.processes import until
from tests.unit.broker.test_official_client import EARLIEST
from tests.unit.broker.test_official_client import client as official

pytestmark = pytest.mark.process

TIMEOUT_S = 60


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of its own; it must not hang, whatever it does."""
    text = f"import os, sys, magnetar\n{textwrap.dedent(program)}"
    return subprocess.run(
        [sys.executable, "-u", "-W", "error", "-c", text, *arguments],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def said(program: str, *arguments: str) -> list[str]:
    """The lines on stdout of a program that ends well and leaves nothing on stderr."""
    done = run(program, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.splitlines()


FORK = """
    import gc
    address, topic = sys.argv[1:]

    def in_child(work):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            work()
            sys.exit(0)  # as a program ends: what was inherited is cleaned up
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def attempt(call):
        try:
            print("went well:", call())
        except magnetar.TopicError as error:
            print(type(error).__name__, error)

    def new():
        with magnetar.Client(address) as made:
            made.producer(topic).send(b"from the child")
"""


def test_a_client_works_in_the_child_of_a_fork_or_says_what_to_do(volatile_pulsar_server: TopicPlace) -> None:
    lines = said(
        FORK
        + """
    client = magnetar.Client(address)
    producer, consumer = client.producer(topic), client.consumer(topic, "s", from_earliest=True)
    producer.send(b"from the parent")
    message = consumer.receive(10)
    producer.send(b"it waits in the parent's queue")

    def inherited():
        for call in (
            lambda: producer.send(b"x"), producer.flush, producer.close, lambda: consumer.receive(1), consumer.flush,
            lambda: consumer.receive_batch(1, 1), lambda: next(iter(consumer)), lambda: consumer.ack(message),
            lambda: consumer.nack(message), lambda: client.producer(topic), lambda: client.topics.list(), new,
        ):
            attempt(call)
        client.close()
        globals().pop("producer"), globals().pop("consumer"), globals().pop("client")
        gc.collect()

    for _ in range(3):
        in_child(inherited)
    producer.send(b"the parent goes on")
    print(consumer.receive(10).payload, consumer.receive(10).payload)
    client.close()
    in_child(new)
    """,
        volatile_pulsar_server.grpc_url,
        volatile_pulsar_server.topic("t"),
    )
    round_ = len(lines[: lines.index("0")])
    assert round_ == 12
    for first in range(0, 3 * (round_ + 1), round_ + 1):
        *inherited, new, code = lines[first : first + round_ + 1]
        assert all(re.match("ClientClosed .*make one in this process .*gunicorn", line) for line in inherited)
        assert re.match("TopicError .*forked while a client was open.*gunicorn.*spawn", new)
        assert code == "0"
    assert lines[-2:] == ["""b"it waits in the parent's queue" b'the parent goes on'""", "0"]


def test_a_fork_waits_until_the_threads_of_a_closed_client_are_gone(volatile_pulsar_server: TopicPlace) -> None:
    """Also for the system: gRPC takes locks when a thread ends, and in the child nobody would free them."""
    lines = said(
        """
    import threading
    address, topic = sys.argv[1:]
    threads, left = set(), []

    def look():
        left.extend(threads & {int(name) for name in os.listdir("/proc/self/task")})

    os.register_at_fork(before=look)  # the last to be called: the client registers its own later
    for _ in range(30):
        with magnetar.Client(address) as client:
            client.producer(topic).send(b"x")
            threads |= {one.native_id for one in threading.enumerate() if one is not threading.main_thread()}
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    print(len(threads) >= 30, left)
    """,
        volatile_pulsar_server.grpc_url,
        volatile_pulsar_server.topic("t"),
    )
    assert lines == ["True []"]


def test_multiprocessing_works_with_a_client_in_each_process(volatile_pulsar_server: TopicPlace) -> None:
    lines = said(
        """
    import multiprocessing
    address, topic = sys.argv[1:]

    def work(number):
        with magnetar.Client(address) as client:
            client.producer(topic).send(b"%d" % number)

    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(work, range(4))
    with magnetar.Client(address) as client, client.reader(topic) as reader:
        print(sorted(reader.receive(10).payload for _ in range(4)))
    """,
        volatile_pulsar_server.grpc_url,
        volatile_pulsar_server.topic("t"),
    )
    assert lines == ["[b'0', b'1', b'2', b'3']"]


@pytest.mark.parametrize("end", ["", "client.close()", "sys.exit(0)", "del client, producer, consumer"])
def test_a_process_ends_whatever_its_threads_wait_for(volatile_pulsar_server: TopicPlace, end: str) -> None:
    done = run(
        f"""
    import threading, time, warnings
    warnings.simplefilter("ignore")
    client = magnetar.Client(sys.argv[1], operation_timeout_s=5)
    producer = client.producer(sys.argv[2], send_timeout_s=2)
    consumer = client.consumer(sys.argv[2], "s")
    producer.send(b"x")

    def send(producer):
        while True:
            producer.send(b"x")

    def receive(consumer):
        while True:
            consumer.receive()

    for target, part in ((send, producer), (receive, consumer), (receive, consumer)):
        threading.Thread(target=target, args=(part,), daemon=True).start()
    time.sleep(0.1)
    {end}
    """,
        volatile_pulsar_server.grpc_url,
        volatile_pulsar_server.topic("t"),
    )
    assert done.returncode == 0, done.stderr


def test_threads_that_send_end_when_the_client_is_closed_and_so_does_the_process(
    volatile_pulsar_server: TopicPlace,
) -> None:
    lines = said(
        """
    import collections, threading, time
    ended = collections.Counter()

    def send(producer):
        try:
            while True:
                producer.send(b"x")
        except magnetar.TopicError as error:
            ended[type(error).__name__] += 1

    for number in range(12):
        client = magnetar.Client(sys.argv[1], operation_timeout_s=5)
        threads = [
            threading.Thread(target=send, args=(client.producer(sys.argv[2], mix_keys=bool(number % 2)),))
            for number in range(10)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.01 * number)
        client.close()
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    print(dict(ended))
    """,
        volatile_pulsar_server.grpc_url,
        volatile_pulsar_server.topic("t"),
    )
    assert lines == ["{'ClientClosed': 120}"]


def test_nothing_stands_on_stderr_but_what_the_program_writes(volatile_pulsar_server: TopicPlace) -> None:
    """Wrong ports, TLS for plain, nobody there: errors, and nothing beside them (`-W error` is on, too)."""
    lines = said(
        """
    grpc, pulsar, http = sys.argv[1:]
    for address, options in (
        (grpc, {"tls": True}), (pulsar, {}), (http, {}), (pulsar, {"tls": True}), (http, {"tls": True}),
        ("localhost:1", {"operation_timeout_s": 0.2}),
    ):
        with magnetar.Client(address, **{"operation_timeout_s": 30, **options}) as client:
            try:
                client.producer("t").send(b"x")
            except magnetar.TopicError as error:
                print(error)
    """,
        volatile_pulsar_server.grpc_url,
        volatile_pulsar_server.service_url.partition("://")[2],
        volatile_pulsar_server.admin_url.partition("://")[2],
    )
    words = ["gRPC without TLS", "binary protocol", "speaks HTTP", "binary protocol", "speaks HTTP", "is refused"]
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True)), lines


def test_retries_share_a_subscription_with_the_official_client(volatile_pulsar_server: TopicPlace) -> None:
    """Both nack what they get. Each message is delivered as often as it should be, and ends in one topic for both."""
    topic = volatile_pulsar_server.topic("t")
    policy = pulsar.ConsumerDeadLetterPolicy(2, initial_subscription_name="inspection")
    retry = magnetar.Retry(max=2, backoff=0.1, retry_topic=None, dead_letter_subscription="inspection")
    place = volatile_pulsar_server
    with magnetar.Client(place.grpc_url) as client, official(place.service_url) as theirs:
        their = theirs.subscribe(
            topic, "s", pulsar.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=100, dead_letter_policy=policy, receiver_queue_size=2,
        )  # fmt: skip
        our = client.consumer(topic, "s", type="shared", retry=retry, queue_size=2)
        client.producer(topic).send_many([magnetar.Outgoing(b"%d" % n, key=str(n)) for n in range(8)])
        deliveries = list[tuple[str, bytes]]()

        def are_all_taken() -> bool:
            """A message of each client, if there is any; whether nothing came, and none is left."""
            before = len(deliveries)
            with contextlib.suppress(pulsar.Timeout):
                message = their.receive(20)
                their.negative_acknowledge(message)
                deliveries.append(("their", message.data()))
            if ours := our.receive_batch(1, timeout_s=0.02):
                our.nack(ours)
                deliveries.append(("our", ours[0].payload))
            return len(deliveries) == before and not client.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"]

        until(are_all_taken, "all have gone to the dead letter topic", 60)
        assert {name for name, _ in deliveries} == {"our", "their"}
        times = collections.Counter(payload for _, payload in deliveries)
        # Of those that came too often, at a nack of theirs, ours takes only the first for what ends its program.
        assert times.keys() == {b"%d" % n for n in range(8)}
        assert set(times.values()) <= {3, 4}
        with client.consumer(f"{topic}-s-DLQ", "inspection") as inspection:
            letters = [inspection.receive(10) for _ in range(8)]
        assert {letter.payload for letter in letters} == {b"%d" % n for n in range(8)}
        for letter in letters:
            assert letter.key == letter.payload.decode()
            assert letter.properties["REAL_TOPIC"] == topic
            assert magnetar.MessageId.parse(letter.properties["ORIGIN_MESSAGE_ID"]).entry_id >= 0
        assert our.receive_batch(1, timeout_s=0.2) == []


def test_a_copy_in_the_retry_topic_is_read_by_the_official_client(volatile_pulsar_server: TopicPlace) -> None:
    topic = volatile_pulsar_server.topic("t")
    with magnetar.Client(volatile_pulsar_server.grpc_url) as client:
        with client.consumer(topic, "s", type="shared", retry=magnetar.Retry(backoff=0.2)) as our:
            client.producer(topic).send(b"x", key="k", event_time=7)
            our.nack(our.receive(10))
        with official(volatile_pulsar_server.service_url) as theirs:
            copy = theirs.subscribe(f"{topic}-s-RETRY", "s", pulsar.ConsumerType.Shared).receive(10_000)
            assert (copy.data(), copy.partition_key(), copy.event_timestamp()) == (b"x", "k", 7)
            assert copy.properties()["RECONSUMETIMES"] == "1"
            assert copy.properties()["DELAY_TIME"] == "200"
            assert copy.properties()["REAL_SUBSCRIPTION"] == "s"


def test_a_topic_grows_under_open_clients_of_both_kinds(volatile_pulsar_server: TopicPlace) -> None:
    """By a command of the operator. Each of them reads what the other sends, whatever number of partitions it knows."""
    place, topic = volatile_pulsar_server, volatile_pulsar_server.topic("grown")
    keys = [f"k{number}" for number in range(20)]
    with magnetar.Client(place.grpc_url) as client, official(place.service_url) as theirs:
        client.topics.create(topic, partitions=2)
        producer, consumer = client.producer(topic).open(), client.consumer(topic, "ours")
        old = theirs.create_producer(topic)
        command = ["magnetar", "topics", "set-partitions", topic, "4", "--admin-url", place.admin_url]
        subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, timeout=TIMEOUT_S)
        until(lambda: producer.send(b"seen").partition > 1, "the new partitions are used")
        their = theirs.subscribe(topic, "theirs", initial_position=EARLIEST)
        new = theirs.create_producer(topic)
        assert [producer.send(b"ours", key=key).partition for key in keys] == [partition_of_key(key, 4) for key in keys]
        assert {new.send(b"theirs", partition_key=key).partition() for key in keys} == {0, 1, 2, 3}
        old.send(b"of one that knows two partitions")
        of_ours: collections.Counter[bytes] = collections.Counter()
        while of_ours != {b"ours": 20, b"theirs": 20, b"of one that knows two partitions": 1}:
            of_ours.update(one.payload for one in consumer.receive_batch(timeout_s=10) if one.payload != b"seen")
        of_theirs = collections.Counter(their.receive(10_000).data() for _ in range(41))
        assert of_theirs[b"ours"] + of_theirs[b"seen"] >= 20


def test_exclusive_access_is_shared_out_among_clients_of_both_kinds(volatile_pulsar_server: TopicPlace) -> None:
    place, topic, mode = volatile_pulsar_server, volatile_pulsar_server.topic("state"), pulsar.ProducerAccessMode
    with magnetar.Client(place.grpc_url) as client, official(place.service_url) as theirs:
        client.consumer(topic, "keeps", from_earliest=True).close()
        ours = client.producer(topic, access="exclusive").open()
        for wanted in (mode.Exclusive, mode.Shared):
            with pytest.raises((pulsar.ProducerFenced, pulsar.ProducerBusy)):
                theirs.create_producer(topic, access_mode=wanted)
        ours.send(b"1")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waits = pool.submit(theirs.create_producer, topic, access_mode=mode.WaitForExclusive)
            with pytest.raises(concurrent.futures.TimeoutError):
                waits.result(0.3)
            ours.close()
            their = waits.result(TIMEOUT_S)
        their.send(b"2")
        waiting = client.producer(topic, access="wait_for_exclusive")
        sent = waiting.send_async(b"3")
        with pytest.raises(ProducerFenced):
            client.producer(topic, access="exclusive").open()
        their.close()
        sent.result(TIMEOUT_S)
        last = theirs.create_producer(topic, access_mode=mode.ExclusiveWithFencing)
        with pytest.raises(ProducerFenced, match="is outdated"):
            waiting.send(b"of the one that was fenced out")
        last.send(b"4")
        fencing = client.producer(topic, access="exclusive_with_fencing").open()
        with pytest.raises(pulsar.PulsarException):
            last.send(b"of theirs that was fenced out")
        fencing.send(b"5")
        with client.reader(topic) as reader:
            stored = []
            while reader.has_more():
                stored.append(reader.receive(10).payload)
        assert stored == [b"1", b"2", b"3", b"4", b"5"]


def test_a_pattern_follows_topics_of_official_clients(volatile_pulsar_server: TopicPlace) -> None:
    """Both kinds of clients share a subscription of a pattern, and each message is taken once."""
    place = volatile_pulsar_server
    pattern = place.topic("orders-.*")
    with magnetar.Client(place.grpc_url) as client, official(place.service_url) as theirs:
        client.topics.create(place.topic("orders-1"))
        ours = client.consumer(subscription="s", pattern=pattern, type="shared")
        their = theirs.subscribe(re.compile(pattern), "s", pulsar.ConsumerType.Shared)
        for name in ("orders-2", "orders-3", "other"):
            theirs.create_producer(place.topic(name)).send(f"to {name}".encode())
        client.topics.create(place.topic("orders-4"), partitions=2)
        client.producer(place.topic("orders-4")).send_many([b"to orders-4, %d" % n for n in range(6)])
        taken = list[bytes]()
        wanted = sorted([b"to orders-2", b"to orders-3", *(b"to orders-4, %d" % n for n in range(6))])

        def are_all_taken() -> bool:
            for message in ours.receive_batch(timeout_s=0.1):
                taken.append(message.payload)
                ours.ack(message)
            with contextlib.suppress(pulsar.Timeout):
                while True:
                    one = their.receive(20)
                    taken.append(one.data())
                    their.acknowledge(one)
            return sorted(taken) == wanted

        until(are_all_taken, "all are taken", 60)


def test_what_kills_its_worker_each_time_ends_in_the_dead_letter_topic(volatile_pulsar_server: TopicPlace) -> None:
    topic = volatile_pulsar_server.topic("t")
    worker = """
        import os, signal
        address, topic = sys.argv[1:]
        retry = magnetar.Retry(max=1)
        with magnetar.Client(address) as client:
            with client.consumer(topic, "s", type="shared", queue_size=2, retry=retry) as consumer:
                print("ready", flush=True)
                for message in consumer:
                    if message.payload == b"poison":
                        print("dies", message.redelivery_count, flush=True)
                        os.kill(os.getpid(), signal.SIGKILL)
                    consumer.ack(message)
                    consumer.flush()
    """
    command = [sys.executable, "-c", f"import sys, magnetar\n{textwrap.dedent(worker)}"]
    address = volatile_pulsar_server.grpc_url
    workers = [subprocess.Popen([*command, address, topic], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        assert [one.stdout.readline() for one in workers if one.stdout is not None] == ["ready\n"] * 3
        with magnetar.Client(address) as client:
            client.producer(topic).send(b"poison", key="k")
            with client.reader(f"{topic}-s-DLQ") as dead:
                letter = dead.receive(10)
            assert (letter.payload, letter.key, letter.properties["REAL_TOPIC"]) == (b"poison", "k", topic)
            until(lambda: sum(one.poll() is not None for one in workers) == 2, "two have died", 5)
            client.producer(topic).send(b"harmless")
            until(lambda: not client.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"], "the last one works", 5)
    finally:
        for one in workers:
            one.kill()
        said = sorted(one.communicate()[0] for one in workers)
    assert said == ["", "dies 0\n", "dies 1\n"]


# A supervisor: starts its only worker again each time that it dies.
SUPERVISED = """
    import asyncio, signal
    address, topic, kind, way, api = sys.argv[1:]
    options = dict(type=kind, from_earliest=True, retry=magnetar.Retry(max=2))

    def take(message):
        if message.payload != b"poison":
            return
        print("dies", message.redelivery_count, flush=True)
        if way == "exit":
            os._exit(1)
        os.kill(os.getpid(), getattr(signal, way))

    def work():
        with magnetar.Client(address) as client, client.consumer(topic, "s", **options) as consumer:
            for message in consumer:
                take(message)
                consumer.ack(message)
                consumer.flush()
                if message.payload == b"last":
                    return

    async def work_async():
        async with magnetar.AsyncClient(address) as client, client.consumer(topic, "s", **options) as consumer:
            async for message in consumer:
                take(message)
                consumer.ack(message)
                await consumer.flush()
                if message.payload == b"last":
                    return

    for _ in range(6):
        child = os.fork()
        if child == 0:
            asyncio.run(work_async()) if api == "async" else work()
            os._exit(0)
        if not os.waitpid(child, 0)[1]:
            break
"""


@pytest.mark.parametrize(
    ("kind", "way", "api", "batch"),
    [
        ("shared", "exit", "sync", False),
        ("shared", "SIGKILL", "async", True),
        ("key_shared", "SIGSEGV", "sync", True),
        ("key_shared", "SIGKILL", "async", False),
    ],
)
def test_what_kills_a_lone_worker_each_time_ends_in_the_dead_letter_topic(
    volatile_pulsar_server: TopicPlace, kind: magnetar.SubscriptionType, way: str, api: str, batch: bool
) -> None:
    """What waited behind it in the queues of those that died does not."""
    topic = volatile_pulsar_server.topic(f"lone-{kind}-{way}-{api}")
    payloads = [b"first", b"poison", b"next", b"last"]
    with magnetar.Client(volatile_pulsar_server.grpc_url) as client:
        client.consumer(topic, "s", type=kind).open().close()
        if batch:
            client.producer(topic).send_many(payloads)
        else:
            for payload in payloads:
                client.producer(topic).send(payload)
        assert said(SUPERVISED, volatile_pulsar_server.grpc_url, topic, kind, way, api) == [
            "dies 0", "dies 1", "dies 2",
        ]  # fmt: skip
        with client.reader(f"{topic}-s-DLQ") as dead:
            letter = dead.receive(10)
            assert (letter.payload, letter.properties["REAL_TOPIC"]) == (b"poison", topic)
            assert not dead.has_more()
        assert client.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0
