"""Wrong uses of the topic API: each ends in a second, with an error that names what is wrong, and the way out."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import magnetar
import magnetar.client.errors
from broker.grpc.service import GrpcServer
from magnetar.client.async_client import AsyncClient
from magnetar.client.codecs.declared import Schema
from magnetar.client.values import Outgoing
from magnetar_core.topics.message_id import MessageId
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import client, door

__all__ = ["client", "door", "world"]

ID = MessageId(1, 2)

# Without their types, which would not let these uses pass.
a_schema: Any = Schema
an_outgoing: Any = Outgoing
an_id: Any = MessageId

# Less than any time after which these clients would give up by themselves.
PATIENCE_S = 4.0


# What a client is made with: the arguments, and the words of the error.
CLIENTS: dict[str, tuple[dict[str, Any], str]] = {
    "no address": ({"addresses": ""}, "address of at least one broker, host:port"),
    "no addresses": ({"addresses": []}, "address of at least one broker"),
    "an address without a port": ({"addresses": "localhost"}, "'localhost' is not host:port"),
    "the binary protocol's URL": ({"addresses": "pulsar://localhost:6650"}, "pulsar.Client.*6648 of a standalone"),
    "a URL of HTTP": ({"addresses": "http://localhost:8080"}, "is HTTP"),
    "a number": ({"addresses": 6648}, "addresses is int; it takes a list of str"),
    "numbers": ({"addresses": [6648]}, "an address is int; it takes host:port"),
    "bytes": ({"addresses": b"localhost:1"}, "addresses is bytes"),
    "time as text": ({"operation_timeout_s": "5"}, "operation_timeout_s is str; it takes seconds"),
    "no time": ({"operation_timeout_s": 0}, "operation_timeout_s is 0; it takes seconds above 0"),
    "never": ({"operation_timeout_s": None}, "operation_timeout_s is NoneType"),
    "a token of bytes": ({"token": b"secret"}, "token is bytes; it takes str, or a function"),
    "an empty token": ({"token": " \n"}, "token is empty; leave it out"),
    "two lines of token": ({"token": "a\nb"}, "the end of a line in its middle"),
    "TLS by name": ({"tls": "yes"}, "tls is str; it takes True or False"),
    "a file that is not there": ({"tls_trust_certs_file": "/no/such.pem"}, "tls_trust_certs_file: .*No such file"),
    "certificates that are none": ({"tls_trust_certs_file": __file__}, "tls_trust_certs_file cannot be used"),
    "a key that is none": (
        {"tls_certificate_file": __file__, "tls_key_file": __file__},
        "tls_certificate_file and tls_key_file cannot be used",
    ),
    "a certificate without its key": ({"tls_certificate_file": __file__}, "need each other"),
    "a state for nobody": ({"on_state": "print"}, "on_state is str; it takes a function"),
    "telemetry by a switch": ({"telemetry": True}, r"telemetry is bool; it takes magnetar.Telemetry\(\) or None"),
    "a host as text": ({"trusted_hosts": "a.example"}, "trusted_hosts is str; it takes a list"),
}


@pytest.mark.parametrize("kind", [magnetar.AsyncClient, magnetar.Client])
@pytest.mark.parametrize("case", CLIENTS)
def test_a_client_that_cannot_be(case: str, kind: Any) -> None:
    arguments, words = CLIENTS[case]
    with pytest.raises((TypeError, ValueError), match=words):
        kind(**{"addresses": "localhost:1", **arguments})


Use = Callable[[Any], Any]

# What a client is asked for: no server is needed to refuse it.
USES: dict[str, tuple[Use, str]] = {
    "a topic without a name": (lambda c: c.producer(""), "topic is empty"),
    "a topic of bytes": (lambda c: c.producer(b"t"), "topic is bytes; it takes str"),
    "no topic": (lambda c: c.consumer(None, "s"), "takes a topic, or topics=.*, or pattern="),
    "a topic and topics": (lambda c: c.consumer("t", "s", topics=["u"]), "takes a topic, or topics=.*, or pattern="),
    "topics as text": (lambda c: c.consumer(subscription="s", topics="t,u"), "topics is str; it takes a list of str"),
    "topics by number": (lambda c: c.consumer(subscription="s", topics=[1]), "one of topics is int; it takes str"),
    "topics without a name": (lambda c: c.consumer(subscription="s", topics=["t", ""]), "one of topics is empty"),
    "topics without a subscription": (lambda c: c.consumer(topics=["t"]), "subscription is empty"),
    "a pattern by number": (lambda c: c.consumer(subscription="s", pattern=1), "pattern is int; it takes str"),
    "a pattern that is none": (lambda c: c.consumer(subscription="s", pattern="t["), "is no regular expression"),
    "a pattern of many namespaces": (lambda c: c.consumer(subscription="s", pattern="a/.*/t"), "is no namespace"),
    "half a name as a pattern": (lambda c: c.consumer(subscription="s", pattern="ns/t.*"), "tenant/namespace/"),
    "a pattern of what passes": (
        lambda c: c.consumer(subscription="s", pattern="non-persistent://a/b/.*"), "no topics that are non-persistent",
    ),
    "retries of a pattern": (
        lambda c: c.consumer(subscription="s", pattern=".*", type="shared", retry=magnetar.Retry()),
        "a pattern has no topic that gives names",
    ),
    "a producer by number": (lambda c: c.producer("t", name=1), "name is int; it takes str"),
    "a name that is no text": (lambda c: c.producer("t", name="\ud800"), "cannot be written as UTF-8"),
    "a schema by name": (lambda c: c.producer("t", schema="json"), "schema is str; it takes magnetar.Schema"),
    "a type of schema by number": (lambda c: a_schema(2), "type of a Schema is int; it takes a name: .json"),
    "a type of schema that there is not": (lambda c: a_schema("JSON"), "is 'JSON'; it takes one of string, json"),
    "a schema as a number": (lambda c: a_schema("json", 1), "data of a Schema is int; it takes bytes, str"),
    "mixed by number": (lambda c: c.producer("t", mix_keys=1), "mix_keys is int; it takes True or False"),
    "an access by number": (lambda c: c.producer("t", access=1), "access is int; it takes str"),
    "an access as in Pulsar": (lambda c: c.producer("t", access="Exclusive"), "expected one of shared, exclusive"),
    "no time to wait": (lambda c: c.producer("t").open(timeout_s=0), "timeout_s is 0; it takes seconds above 0"),
    "a time to wait as text": (lambda c: c.producer("t").open(timeout_s="1"), "timeout_s is str; it takes seconds"),
    "no time to send": (lambda c: c.producer("t", send_timeout_s=0), "send_timeout_s is 0"),
    "a subscription without a name": (lambda c: c.consumer("t", ""), "subscription is empty"),
    "a type that there is not": (lambda c: c.consumer("t", "s", type="Shared"), "exclusive, shared, failover"),
    "a type by number": (lambda c: c.consumer("t", "s", type=1), "type is int; it takes str"),
    "a place as in Pulsar": (lambda c: c.consumer("t", "s", from_earliest="earliest"), "from_earliest is str"),
    "no queue": (lambda c: c.consumer("t", "s", queue_size=0), "queue_size is 0; it takes 1 to"),
    "ranges flat": (lambda c: c.consumer("t", "s", type="key_shared", sticky_ranges=[1, 2]), "list of .first, last"),
    "ranges too far": (
        lambda c: c.consumer("t", "s", type="key_shared", sticky_ranges=[(0, 65_536)]),
        "sticky_ranges is 65536; it takes 0 to 65535",
    ),
    "a priority as text": (lambda c: c.consumer("t", "s", priority="high"), "priority is str; it takes int"),
    "a start that there is not": (lambda c: c.reader("t", start="first"), "earliest, latest, a MessageId or a time"),
    "a start in seconds": (lambda c: c.reader("t", start=1.5), "start is float; it takes milliseconds"),
    "text": (lambda c: c.producer("t").send("text"), 'value is str; it takes bytes .*encode.*value=str'),
    "a dict": (lambda c: c.producer("t").send({"a": 1}), "value is dict; it takes bytes"),
    "a key by number": (lambda c: c.producer("t").send(b"x", key=1), "key is int; it takes str"),
    "a key of bytes": (lambda c: c.producer("t").send(b"x", key=b"k"), "key is bytes; it takes str"),
    "an ordering key of text": (lambda c: c.producer("t").send(b"x", ordering_key="k"), "ordering_key is str"),
    "numbers in properties": (
        lambda c: c.producer("t").send(b"x", properties={"n": 1}), "properties\\['n'\\] is int; it takes str",
    ),
    "properties as text": (lambda c: c.producer("t").send(b"x", properties="a=b"), "properties is str; it takes a map"),
    "a time of seconds": (lambda c: c.producer("t").send(b"x", event_time=time.time()), "event_time is float"),
    "a time before 1970": (lambda c: c.producer("t").send(b"x", deliver_at=-5), "deliver_at: -5 is not a time"),
    "a number as text": (lambda c: c.producer("t").send(b"x", sequence_id="1"), "sequence_id is str; it takes int"),
    "a number too large": (lambda c: c.producer("t").send(b"x", sequence_id=2**64), "sequence_id is 184"),
    "a negative number": (lambda c: c.producer("t").send(b"x", sequence_id=-1), "sequence_id is -1"),
    "many as one": (lambda c: c.producer("t").send_many(b"abc"), "messages is bytes; it takes a list"),
    "many texts": (lambda c: c.producer("t").send_many(["a"]), "a message is str; it takes bytes or magnetar.Outgoing"),
    "many with a wrong one": (lambda c: c.producer("t").send_many([an_outgoing("a")]), "value is str"),
    "an ack of a payload": (lambda c: c.consumer("t", "s").ack([b"payload"]), "what is acknowledged is bytes"),
    "an ack of text": (lambda c: c.consumer("t", "s").ack("1:2:-1"), "is str; it takes messages, their MessageIds"),
    "an ack of nothing": (lambda c: c.consumer("t", "s").ack([None]), "what is acknowledged is NoneType"),
    "an ack of None": (lambda c: c.consumer("t", "s").ack(None), "what is acknowledged is NoneType"),
    "an ack of no message": (lambda c: c.consumer("t", "s").ack(MessageId(-1, -1)), "no message that was received"),
    "an ack of a part": (lambda c: c.consumer("t", "s").ack(MessageId(1, 2, -1, 3, 2)), "give an id back as it came"),
    "an ack of text as number": (lambda c: c.consumer("t", "s").ack(an_id("1", 2)), "ledger_id .* is str"),
    "an ack before anything": (lambda c: c.consumer("t", "s").ack(ID), "nothing was received yet"),
    "a nack of a payload": (lambda c: c.consumer("t", "s").nack(b"x"), "what is acknowledged is bytes"),
    "a nack in a while": (lambda c: c.consumer("t", "s").nack(ID, delay_s="1"), "delay_s is str"),
    "a nack never": (lambda c: c.consumer("t", "s").nack(ID, delay_s=float("inf")), "delay_s is inf; it takes seconds"),
    "everything up to text": (lambda c: c.consumer("t", "s").ack_cumulative("1:2"), "message is str"),
    "everything up to several": (lambda c: c.consumer("t", "s").ack_cumulative([ID]), "message is list"),
    "a reader's ack": (lambda c: c.reader("t").ack(ID), "a reader acknowledges nothing; use a consumer"),
    "a wait as text": (lambda c: c.consumer("t", "s").receive("1"), "timeout_s is str; it takes seconds"),
    "a wait before now": (lambda c: c.consumer("t", "s").receive(-1), "timeout_s is -1"),
    "a batch of none": (lambda c: c.consumer("t", "s").receive_batch(0), "max_messages is 0"),
    "a seek to nowhere": (lambda c: c.consumer("t", "s").seek("nowhere"), "earliest, latest, a MessageId or a time"),
    "a seek to a message": (lambda c: c.consumer("t", "s").seek(b"x"), "to is bytes"),
    "half a partition": (lambda c: c.topics.create("t", partitions=1.5), "partitions is float; it takes int"),
    "partitions below none": (lambda c: c.topics.create("t", partitions=-1), "partitions is -1; it takes 0 to"),
    "a new topic without a name": (lambda c: c.topics.create(""), "topic is empty"),
    "no namespace": (lambda c: c.topics.list(None), "namespace is NoneType"),
    "several topics": (lambda c: c.producer(["a", "b"]), "topic is list; it takes str"),
    "values by name": (lambda c: c.producer("t", value="json"), "value is str; it takes bytes, str, magnetar.Json"),
    "values and a schema": (lambda c: c.producer("t", value=str, schema=a_schema("string")), "leave schema= out"),
    "values that say too little": (lambda c: c.consumer("t", "s", value=dict), "is dict; it takes bytes"),
    "retries by number": (lambda c: c.consumer("t", "s", type="shared", retry=5), "retry is int; it takes"),
    "retries in order": (lambda c: c.consumer("t", "s", retry=magnetar.Retry()), 'needs type="shared" or "key_shared"'),
    "a table of nothing": (lambda c: c.table_view(""), "topic is empty"),
    "an id of text": (lambda c: c.reader("t", start=an_id.parse("first")), "expected ledger:entry:partition"),
    "an id of a number": (lambda c: c.reader("t", start=an_id.parse(5)), "is int; `parse` takes the str that"),
    "an id of no bytes": (lambda c: c.reader("t", start=an_id.from_bytes(b"")), "takes what `to_bytes` gave"),
    "an id of other bytes": (lambda c: c.reader("t", start=an_id.from_bytes("x")), "is str; `from_bytes` takes what"),
    "force by number": (lambda c: c.topics.delete("t", force=1), "force is int; it takes True or False"),
}  # fmt: skip


async def done(value: Any) -> None:
    if isinstance(value, Awaitable):
        await value


@pytest.mark.parametrize("case", USES)
async def test_a_call_that_cannot_be(case: str) -> None:
    use, words = USES[case]
    async with AsyncClient("localhost:1") as made, asyncio.timeout(PATIENCE_S):
        with pytest.raises((TypeError, ValueError, magnetar.TopicError), match=words):
            await done(use(made))


async def test_the_client_without_await_says_the_same(door: GrpcServer) -> None:
    """Its consumers connect when they are made, so they can be asked for an ack at once."""
    uses = {case: use for case, (use, _) in USES.items() if case != "an ack before anything"}

    def refused(use: Use) -> str:
        with magnetar.Client(f"127.0.0.1:{door.port}") as made:
            try:
                return f"went well: {use(made)!r}"
            except (TypeError, ValueError, magnetar.TopicError) as error:
                return str(error)

    errors = await asyncio.to_thread(lambda: {case: refused(use) for case, use in uses.items()})
    assert {case: error for case, error in errors.items() if not re.search(USES[case][1], error)} == {}


async def test_a_client_that_is_closed_names_the_way_out() -> None:
    async with AsyncClient("localhost:1") as gone:
        pass
    with magnetar.Client("localhost:1") as also_gone:
        pass
    for made in (gone, also_gone):
        with pytest.raises(magnetar.client.errors.ClientClosed, match="the client is closed; make another one"):
            await done(made.producer("t").send(b"x"))


@pytest.fixture
async def used(client: AsyncClient, world: BrokerInMemory) -> AsyncIterator[AsyncClient]:
    """A client of a broker with topics and clients that are in the way of what the cases do."""
    await client.topics.create("parts", partitions=2)
    await client.producer("used", name="me").send(b"x")
    await world.set_policies("public/default", subscription_types_enabled=["Exclusive", "Failover"])
    async with client.consumer("used", "s", from_earliest=True) as consumer:
        await consumer.receive(1)
        yield client


# What only a broker can refuse: the words of its error, and those of a way out that would be wrong.
REFUSED: dict[str, tuple[Use, str, str]] = {
    "a namespace that is not there": (
        lambda c: c.producer("no/where/t").send(b"x"), "magnetar namespaces create no/where", "create the topic",
    ),
    "its topics": (lambda c: c.topics.list("no/where"), "^no/where: .*magnetar namespaces create", "create the topic"),
    "a topic in it": (lambda c: c.topics.create("no/where/t"), "namespaces create no/where", "create the topic"),
    "to read in it": (lambda c: c.consumer("no/where/t", "s").open(), "namespaces create no/where", "create the topic"),
    "a namespace's name": (lambda c: c.topics.list("public"), "write tenant/namespace", "topic"),
    "a topic's name": (lambda c: c.producer("a/b").send(b"x"), "persistent://tenant/namespace/topic", "policies"),
    "a topic that is used": (lambda c: c.topics.delete("used"), "use force; or close its clients", "policies"),
    "a topic that is there": (lambda c: c.topics.create("used"), "exists; use it, delete it", "policies"),
    "a topic that is gone": (lambda c: c.topics.delete("gone"), "does not exist", "policies"),
    "a non-persistent topic": (
        lambda c: c.producer("non-persistent://public/default/t").send(b"x"), "only the binary protocol", "policies",
    ),
    "a name that is taken": (lambda c: c.producer("used", name="me").open(), "another name, or close", "policies"),
    "a subscription that is taken": (
        lambda c: c.consumer("used", "s").open(), "close the other consumer, or let both use the type Failover",
        "(?i)shared",
    ),
    "a type beside another": (
        lambda c: c.consumer("used", "s", type="failover").open(), "use the type Exclusive", "(?i)shared",
    ),
    "a refused type": (
        lambda c: c.consumer("used", "s2", type="shared").open(), "use Exclusive or Failover, or change", "type SHARED",
    ),
    "a reserved subscription": (lambda c: c.consumer("used", "pulsar.dedup").open(), "take another name", "close"),
    "a subscription called .": (lambda c: c.consumer("used", ".").open(), "take another name", "policies"),
    "a name with an end of line": (lambda c: c.consumer("used", "a\nb").open(), "take another name", "policies"),
    "ranges without their type": (
        lambda c: c.consumer("used", "s3", sticky_ranges=[(0, 1)]).open(), "need the type KEY_SHARED", "policies",
    ),
    "numbers of a partitioned topic": (
        lambda c: c.producer("parts").send_many([b"x"], first_sequence_id=1), "sequence ids with `send`", "policies",
    ),
    "a message of no partition": (
        lambda c: acknowledged(c, "parts", ID), "1:2:-1 does not belong to a partition of parts", "policies",
    ),
}  # fmt: skip


async def acknowledged(made: AsyncClient, topic: str, id_: MessageId) -> None:
    async with made.consumer(topic, "s") as consumer:
        consumer.ack(id_)


@pytest.mark.parametrize("case", REFUSED)
async def test_a_call_that_the_broker_refuses(case: str, used: AsyncClient) -> None:
    use, words, misleading = REFUSED[case]
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises((ValueError, magnetar.TopicError), match=words) as caught:
            await done(use(used))
    assert not re.search(misleading, str(caught.value)), caught.value


async def test_a_token_with_the_end_of_its_line_is_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    for token in (file.read_text(), file.read_text):
        made = AsyncClient("localhost:1", token=token)
        assert made._brokers._access.metadata() == (("authorization", "Bearer secret"),)


async def test_none_is_a_null_message(client: AsyncClient) -> None:
    async with client.consumer("t", "s") as consumer:
        await client.producer("t").send(None, key="k")
        await client.producer("t").send_many([Outgoing(None, key="k")])
        for _ in range(2):
            message = await consumer.receive(5)
            assert (message.key, message.payload, message.is_null) == ("k", b"", True)
