"""Recorded conversations with Apache's broker, repeated with ours (tests/vectors/wire/pulsar*).

The clients' frames are sent in the recorded order; each waits for the answers that came before it in the recording.
Ledger ids, which a client only knows from answers, are replaced by ours.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from broker.broker import Broker
from broker.policies.namespace import new_policies
from broker.records.json_records import to_json
from broker.settings.config import BrokerConfig
from broker.settings.groups.ledgers import INDEX_INTERCEPTOR, TIMESTAMP_INTERCEPTOR
from broker.tenancy.changes import initialise_cluster
from broker.tenancy.partitions import partitions_record
from broker.wire.frames import BODY_OF_TYPE, parse_frame, simple_frame, without_broker_metadata
from broker.wire.pulsar_pb2 import BaseCommand, CommandPong
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.wire.framing import FrameSplitter, MalformedFrame
from magnetar_core.runtime.clock import Clock, LoopClock
from managed_ledger.messages import broker_metadata_of, split_entry
from tests.golden.known_differences import KNOWN_DIFFERENCES
from tests.golden.test_pulsar_frames import frames_of
from tests.support.golden import REPLAYS, Report, b64, beside, golden, is_listed, rows
from tests.support.memory_bookkeeper import MemoryBookKeeper
from tests.support.serving import HurriedClock
from tests.support.sole_owner import SoleOwner

CONFIG: Final = BrokerConfig(
    service_port=0,
    bind_address="127.0.0.1",
    advertised_address="127.0.0.1",
    cluster_name="lab",
    batch_index_acks=True,
    failover_delay_ms=500,  # longer than a busy machine takes from one consumer to the next
    max_entries_per_ledger=40,
    min_rollover_minutes=0,
    delete_inactive_topics=False,
)

# An answer comes in milliseconds, on a busy machine later. Answers that are listed as missing are not waited for that
# long, nor are further ones on a connection where one is missing already.
ANSWER_S: Final = 10.0
LISTED_S: Final = 0.05
AFTER_MISSING_S: Final = 0.5

# Values that each broker chooses itself: only their presence is compared.
OWN: Final = {"message", "error_message", "brokerServiceUrl", "address", "connectedSince", "consumerName"}
GENERATED_NAME: Final = re.compile(r"lab-\d+-\d+")
# Rates of the last minute.
RATES: Final = re.compile(r"msgRate.*|msgThroughput.*|messageAckRate")
SERVER_VERSION: Final = "server_version"

NO_LEDGER: Final = 2**64 - 1

# The highest sequence id of a SEND that has none: Apache's broker answers one or the other, depending on whether the
# object that holds the request was used before.
NO_SEQUENCE_ID: Final = {"0", str(2**64 - 1)}

# The session whose client does not answer pings. In the others they come when a broker likes, and are not compared.
SILENT: Final = "pulsarraw-keepalive"

# Messages whose order is a matter of chance: whether they were on their way already when the client asked for
# redelivery. These rows are not compared.
CHANCE: Final = {"pulsar-java-bem-consume": range(120, 137)}

# Sessions that continue with topics of earlier ones.
AFTER: Final = {
    "pulsarraw-consume": ["pulsarraw-produce"],
    "pulsarraw-v10": ["pulsarraw-produce", "pulsarraw-consume"],
    "pulsar-java-readcompacted": ["pulsar-java-compaction"],
}
# Topics that were there, beside those that the answers list.
TOPICS: Final = {"pulsar-cpp-tour": ["pat-1", "pat-2"]}


# ------------------------------------------------------------------------------------- the broker


@contextlib.asynccontextmanager
async def broker_for(vector: str) -> AsyncIterator[Broker]:
    """Our broker with the namespaces, topics and settings of the recorded one, on ledgers in memory."""
    name = vector.removeprefix("wire/").removesuffix(".jsonl")
    config, clock = CONFIG, LoopClock()
    if "-bem-" in name:
        both = (TIMESTAMP_INTERCEPTOR, INDEX_INTERCEPTOR)
        config = replace(config, entry_metadata_interceptors=both, expose_entry_metadata=True)
    if "keepalive" in name:
        config, clock = replace(config, keep_alive_s=1), HurriedClock()
    store = MemoryStore(clock)
    await initialise_cluster(store, config)
    no_auto = {**new_policies("lab", 4), "autoTopicCreationOverride": {"allowAutoTopicCreation": False}}
    await store.put("/admin/policies/public/noauto", to_json(no_auto))
    await store.put("/admin/partitioned-topics/public/default/persistent/parts", to_json(partitions_record(3)))
    for topic in TOPICS.get(name, []) + listed(vector):
        await store.put(f"/managed-ledgers/public/default/persistent/{topic}", b"")
    broker = make_broker(config, store, clock)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


def make_broker(config: BrokerConfig, store: MemoryStore, clock: Clock) -> Broker:
    return Broker(config, store, MemoryBookKeeper().client, clock, ownership=SoleOwner())


def listed(vector: str) -> list[str]:
    """Topics that answers of the session name before the session could have made them."""
    told = rows(beside(vector, ".decoded.jsonl"))
    for number, row in enumerate(told):
        answer = row.get("command", {}).get("getTopicsOfNamespaceResponse")
        if answer is not None:
            before = str(told[:number])
            names = [topic.rpartition("/")[2] for topic in answer.get("topics", [])]
            return [name for name in names if f"/{name}'" not in before]
    return []


# ------------------------------------------------------------------------------------- one client


class Peer:
    """A connection to our broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers_pings: bool) -> None:
        self.answers_pings = answers_pings
        self._reader = reader
        self._writer = writer
        self._splitter = FrameSplitter()
        self._is_missing_some = False
        self.ended = False
        self.found: list[dict[str, Any]] = []

    @classmethod
    async def connect(cls, port: int, *, answers_pings: bool) -> "Peer":
        return cls(*await asyncio.open_connection("127.0.0.1", port), answers_pings=answers_pings)

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def read(self, wait_s: float = ANSWER_S) -> bool:
        """Take the next command; False if none arrives in time."""
        if self.ended:
            return False
        try:
            async with asyncio.timeout(min(wait_s, AFTER_MISSING_S) if self._is_missing_some else wait_s):
                data = await self._reader.read(1 << 20)
        except TimeoutError:
            self._is_missing_some = self._is_missing_some or wait_s == ANSWER_S
            return False
        except ConnectionError:
            data = b""
        self.ended = not data
        for frame in self._splitter.feed(data):
            made, entry = parse_frame(frame)
            if made.type == BaseCommand.PING and self.answers_pings:
                self.send(simple_frame(BaseCommand(type=BaseCommand.PONG, pong=CommandPong())))
            self.found.append(told(made, entry))
        return True

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


def told(made: BaseCommand, entry: memoryview | None) -> dict[str, Any]:
    """A command without the values that each broker chooses itself."""
    plain: dict[str, Any] = MessageToDict(made, preserving_proto_field_name=True)
    body = plain[BODY_OF_TYPE[made.type]]
    for name, value in list(body.items()):
        if (name in OWN and not isinstance(value, dict)) or name == SERVER_VERSION:
            body[name] = "some"
        elif name == "highest_sequence_id" and made.type == BaseCommand.SEND_RECEIPT and value in NO_SEQUENCE_ID:
            body[name] = "none"
        elif name == "producer_name" and GENERATED_NAME.fullmatch(value):
            body[name] = "generated"
        elif RATES.fullmatch(name):
            del body[name]
        elif name == "topics":
            body[name] = sorted(value)
    if entry is not None:
        plain["entry"] = bytes(without_broker_metadata(entry)).hex()
        metadata = broker_metadata_of(split_entry(entry))
        if metadata is not None:
            plain["brokerEntryMetadata"] = {
                "index": metadata.index if metadata.HasField("index") else None,
                "has time": metadata.broker_timestamp > 0,
            }
    return plain


# ------------------------------------------------------------------------------------ the session


class Session:
    """Holds one conversation. *ledger_ids*: recorded ledger id → ours, of this and earlier sessions."""

    def __init__(self, vector: str, port: int, ledger_ids: dict[int, int], report: Report) -> None:
        self._vector = vector
        self._port = port
        self._ours = ledger_ids
        self._report = report
        self._peers: dict[int, Peer] = {}
        self._chance = CHANCE.get(vector.removeprefix("wire/").removesuffix(".jsonl"), range(0))

    async def hold(self) -> None:
        frames = frames_of(beside(self._vector, ".decoded.jsonl"))
        at = dict.fromkeys(frames, 0)
        for number, row in enumerate(rows(beside(self._vector, ".decoded.jsonl"))):
            connection, direction = row.get("conn", 0), row.get("dir", "c2s")
            if connection not in self._peers:
                self._peers[connection] = await Peer.connect(self._port, answers_pings=SILENT not in self._vector)
            peer = self._peers[connection]
            if row.get("end"):
                if direction == "c2s":
                    await peer.close()
                elif "note" in row:
                    await self._expect_end(number, peer)
                continue
            key = (connection, direction)
            frame = frames[key][at[key]]
            at[key] += 1
            if direction == "c2s":
                peer.send(self._translated(frame))
            else:
                await self._expect(number, peer, *parse_frame(frame))
            if "oversize" in self._vector and number == 1:
                peer.send(self._nonsense())
        for connection, peer in self._peers.items():
            await self._expect_nothing(connection, peer)
            await peer.close()

    def _wait_s(self, step: str) -> float:
        listed = KNOWN_DIFFERENCES[test_sessions_with_the_broker.__name__]
        return LISTED_S if any(is_listed(key, self._vector, step) for key in listed) else ANSWER_S

    def _nonsense(self) -> bytes:
        """The bytes that announce a frame above the limit, which is no frame."""
        return b64(rows(self._vector)[2]["data"])

    def _translated(self, frame: memoryview) -> bytes:
        """A client's frame with our ledger ids."""
        whole = len(frame).to_bytes(4, "big") + bytes(frame)
        try:
            made, entry = parse_frame(frame)
        except MalformedFrame:
            return whole
        if entry is not None:
            return whole
        changed = False
        for message_id in ids_in(made):
            ours = self._ours.get(message_id.ledgerId)
            if ours is not None:
                message_id.ledgerId = ours
                changed = True
        return simple_frame(made) if changed else whole

    async def _expect(self, number: int, peer: Peer, made: BaseCommand, entry: memoryview | None) -> None:
        """Assert that the recorded answer arrives, in whatever order with other answers."""
        if made.type in (BaseCommand.PING, BaseCommand.PONG) and peer.answers_pings:
            return
        if made.type == BaseCommand.MESSAGE and number in self._chance:
            return
        kind = BaseCommand.Type.Name(made.type)
        wanted = told(made, entry)
        metadata = wanted.pop("brokerEntryMetadata", None)
        if made.type == BaseCommand.CONNECTED:
            flags = wanted["connected"].pop("feature_flags", None)
        while True:
            for found in peer.found:
                candidate = dict(found)
                our_metadata = candidate.pop("brokerEntryMetadata", None)
                if made.type == BaseCommand.CONNECTED and found["type"] == kind:
                    candidate["connected"] = dict(found["connected"])
                    our_flags = candidate["connected"].pop("feature_flags", None)
                    with self._report.row(f"{number} feature_flags"):
                        assert our_flags == flags
                learnt: dict[int, int] = {}
                if self._fits(wanted, candidate, learnt):
                    self._ours.update(learnt)
                    peer.found.remove(found)
                    self._report.fine.add(f"{number} {kind}")
                    if metadata is not None:
                        with self._report.row(f"{number} broker entry metadata"):
                            assert our_metadata == metadata
                    return
            if not await peer.read(self._wait_s(f"{number} {kind}")):
                break
        alike = [found for found in peer.found if is_alike(wanted, found)]
        for found in alike[:1]:
            peer.found.remove(found)
        self._report.differs(
            f"{number} {kind}", f"wanted {short(wanted)}, got {short(alike[0]) if alike else 'nothing'}"
        )

    def _fits(self, wanted: Any, found: Any, learnt: dict[int, int], name: str = "") -> bool:
        """Whether both are equal, when recorded ledger ids stand for ours; *learnt* gets those seen first."""
        if isinstance(wanted, dict) and isinstance(found, dict):
            return wanted.keys() == found.keys() and all(
                self._fits(wanted[key], found[key], learnt, key) for key in wanted
            )
        if isinstance(wanted, list) and isinstance(found, list):
            return len(wanted) == len(found) and all(
                self._fits(one, other, learnt, name) for one, other in zip(wanted, found, strict=True)
            )
        if name == "ledgerId":
            recorded, ours = int(wanted), int(found)
            known = self._ours.get(recorded, learnt.get(recorded))
            if known is None and recorded != NO_LEDGER and ours not in self._ours.values():
                learnt[recorded] = ours
                return True
            return ours == (recorded if known is None else known)
        return bool(wanted == found)

    async def _expect_end(self, number: int, peer: Peer) -> None:
        while not peer.ended and await peer.read(self._wait_s(f"{number} end")):
            pass
        with self._report.row(f"{number} end"):
            assert peer.ended, "the recorded connection was closed by the broker"

    async def _expect_nothing(self, connection: int, peer: Peer) -> None:
        await peer.read(LISTED_S)
        aside = {"PING", "PONG", *(["MESSAGE"] if self._chance else [])}
        left = [found for found in peer.found if found["type"] not in aside]
        with self._report.row(f"connection {connection} nothing else"):
            assert left == []


def ids_in(made: BaseCommand) -> list[Any]:
    """The message ids that a client's command brings back."""
    body = getattr(made, BODY_OF_TYPE[made.type])
    match made.type:
        case BaseCommand.ACK:
            return list(body.message_id)
        case BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES:
            return list(body.message_ids)
        case BaseCommand.SEEK if body.HasField("message_id"):
            return [body.message_id]
        case BaseCommand.SUBSCRIBE if body.HasField("start_message_id"):
            return [body.start_message_id]
    return []


def is_alike(wanted: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether *found* answers the same request as *wanted*."""
    theirs = next((value for value in wanted.values() if isinstance(value, dict)), {})
    ours = next((value for value in found.values() if isinstance(value, dict)), {})
    if "request_id" in theirs:
        return bool(theirs["request_id"] == ours.get("request_id"))
    return bool(wanted["type"] == found["type"])


def short(plain: dict[str, Any]) -> str:
    return str({key: value for key, value in plain.items() if key != "entry"})[:600]


@golden(
    "wire/pulsar*.jsonl",
    without=("*.decoded.jsonl",),
    beside_it=(".decoded.jsonl",),
    how={REPLAYS},
    compared="each recorded answer comes on its connection, whatever the order, with equal fields and entries (ledger "
    "ids mapped; texts, addresses, generated names and rates aside; of broker entry metadata the index), no other "
    "answer does, and connections that the broker closed are closed",
)
def test_sessions_with_the_broker(report: Report) -> None:
    asyncio.run(held(report))


async def held(report: Report) -> None:
    name = report.vector.removeprefix("wire/").removesuffix(".jsonl")
    rows(report.vector)
    async with broker_for(report.vector) as broker:
        ledger_ids: dict[int, int] = {}
        for earlier in AFTER.get(name, []):
            await Session(f"wire/{earlier}.jsonl", broker.port, ledger_ids, Report(earlier)).hold()
        await Session(report.vector, broker.port, ledger_ids, report).hold()
