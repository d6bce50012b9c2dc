"""All Consume calls of a broker: how one is opened, and how its requests are read while its answers are written."""

import asyncio
from collections.abc import Hashable
from typing import Any

import grpc

from broker.broker import Broker
from broker.errors import BrokerError
from broker.grpc.callers import caller_of, source_of
from broker.grpc.consume_call import KINDS, ConsumeCall
from broker.grpc.publish import schema_of
from broker.grpc.requests import Requests
from broker.grpc.status import Refused, Status, moved, refusal
from broker.names import check_client_name, parse_topic
from broker.security.authorization import Operation, about_topic
from broker.topic.dispatchers.sticky_keys import check_ranges
from broker.topic.topic import Topic
from magnetar_core.security.caller import Caller
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName


class Consumers:
    """All Consume calls of a broker."""

    def __init__(self, broker: Broker, requests: Requests) -> None:
        self._broker = broker
        self._requests = requests
        self._calls: dict[ConsumeCall, None] = {}

    def end(self) -> None:
        """Disconnect all consumers; their clients look the topics up again."""
        for call in list(self._calls):
            call.end(moved(str(call.topic_name)))

    async def serve(self, call: Any) -> None:
        """One Consume call. Raises Refused, BrokerError."""
        source = source_of(call)
        with self._requests.stream(source):
            await self._serve(call, source)

    async def _serve(self, call: Any, source: Hashable) -> None:
        request = await self._requests.of_role(call, source)
        if not request.HasField("open") or request.acks or request.ack_runs or request.permits:
            raise Refused(Status.INVALID_ARGUMENT, "the first request of Consume has `open`, and nothing else")
        wanted = request.open
        name = parse_topic(wanted.topic)
        if wanted.type not in KINDS:
            raise Refused(Status.INVALID_ARGUMENT, f"{name}: there is no subscription type {wanted.type}")
        if wanted.is_reader and wanted.type != api.EXCLUSIVE:
            raise Refused(Status.INVALID_ARGUMENT, f"{name}: readers have the type EXCLUSIVE")
        if wanted.read_compacted and wanted.type not in (api.EXCLUSIVE, api.FAILOVER):
            raise Refused(Status.INVALID_ARGUMENT, f"{name}: read_compacted needs the type EXCLUSIVE or FAILOVER")
        if wanted.sticky_ranges and wanted.type != api.KEY_SHARED:
            raise Refused(Status.INVALID_ARGUMENT, f"{name}: sticky ranges need the type KEY_SHARED")
        caller = caller_of(call)
        try:
            need = about_topic(Operation.CONSUME, name, wanted.subscription)
            await self._broker.access.check(caller, need)
            check_ranges(len(wanted.sticky_ranges))
            check_client_name(wanted.consumer_name, "consumer")
            self._broker.arrivals.work_for(source)
            consuming, last = await self._attach(name, wanted, call.peer(), caller)
        except BrokerError as error:
            raise refusal(str(name), error) from error
        self._calls[consuming] = None
        try:
            try:
                await self._broker.access.check(caller, need)  # permissions may have changed while it was attached
            except BrokerError as error:
                raise refusal(str(name), error) from error
            opened = api.ConsumeResponse.Opened(consumer_name=consuming.consumer.name, last_id=last)
            await call.write(api.ConsumeResponse(opened=opened))
            with self._broker.partition_counts.following(name, consuming.on_partitions):
                await _pump(call, consuming)
        finally:
            self._calls.pop(consuming, None)
            consuming.detach()

    async def _attach(
        self, name: TopicName, wanted: api.ConsumeRequest.Open, address: str, caller: Caller
    ) -> tuple[ConsumeCall, api.MessageId]:
        broker = self._broker
        if name.partition < 0 and (partitions := await broker.partitions(name, create=not wanted.must_exist)):
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"{name} has {partitions} partitions; open {name.with_partition(0)} and so on",
            )
        topic = await broker.opening.persistent(name, create=not wanted.must_exist)
        if wanted.HasField("schema") and (schema := schema_of(wanted.schema)) is not None:
            await broker.check_consumer_schema(name, schema, "" if wanted.is_reader else wanted.subscription)
        consuming = ConsumeCall(broker, topic, wanted, address, caller)
        last = await last_id(topic, read_compacted=wanted.read_compacted)
        await consuming.subscribe()
        return consuming, last


async def _pump(grpc_call: Any, consuming: ConsumeCall) -> None:
    """Read requests and write answers until the call ends. Raises the Refused that ended it, if there is one."""

    async def write() -> None:
        while True:
            await consuming.changed.wait()
            consuming.changed.clear()
            while (answer := await consuming.take()) is not None:
                await grpc_call.write(answer)
            if consuming.is_ended:
                return

    async def read() -> None:
        while not consuming.is_ended:
            await consuming.may_read.wait()
            request = await grpc_call.read()
            if request is grpc.aio.EOF:
                consuming.end(None)
                return
            await consuming.handle(request)

    writing, reading = asyncio.ensure_future(write()), asyncio.ensure_future(read())
    try:
        await asyncio.wait([writing, reading], return_when=asyncio.FIRST_COMPLETED)
        if reading.done():  # the answers that are left are still written
            reading.result()
            await writing
        else:
            writing.result()
    finally:
        for task in (writing, reading):
            task.cancel()
        await asyncio.gather(writing, reading, return_exceptions=True)
    if consuming.reason is not None:
        raise consuming.reason


async def last_id(topic: Topic, *, read_compacted: bool = False) -> api.MessageId:
    """The last message of *topic*. Raises BrokerError."""
    position, batch_index = await topic.last_message(read_compacted=read_compacted)
    id_ = api.MessageId(ledger_id=position.ledger_id, entry_id=position.entry_id)
    if topic.name.partition >= 0:
        id_.partition = topic.name.partition
    if batch_index >= 0:
        id_.batch_index, id_.batch_size = batch_index, batch_index + 1
    return id_
