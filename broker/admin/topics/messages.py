"""Single messages of a topic over HTTP, what a backlog holds, and taking everything out of a topic.

A position belongs to one partition: calls about a partitioned topic as a whole are refused with 405, as by Apache's
brokers, except the one that truncates it.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final

from aiohttp import web
from multidict import CIMultiDict

from broker.admin.bodies import BadJson, position_from_json
from broker.admin.http import ADMIN, Refused, body_of, done, json_answer, topic_of
from broker.admin.owners import Owners
from broker.admin.rights import Routes
from broker.admin.topics.entry_headers import entry_answer
from broker.admin.topics.managed_ledger_info import managed_ledger_info
from broker.admin.topics.subscriptions import subscription_of
from broker.broker import Broker
from broker.errors import SubscriptionNotFound, TopicNotFound
from broker.security.authorization import Operation
from broker.topic.ports import EntryLike
from broker.topic.reading.looking import analyse, entry_at, peek
from broker.topic.topic import Topic
from managed_ledger.position import EARLIEST, Position

_NO_POSITION: Final = -1

# Entries that are read and unpacked to be shown at the same time: 20 MiB each with the default maxMessageSize, and more
# where their producer says so. Others wait, and hold nothing meanwhile.
UNPACKED_AT_ONCE: Final = 4


class MessagesApi:
    """Entries of topics, shown one by one."""

    def __init__(self, broker: Broker, owners: Owners) -> None:
        self._broker = broker
        self._partitioned = broker.partitioned
        self._owners = owners
        self._unpacking = asyncio.Semaphore(UNPACKED_AT_ONCE)

    def add_routes(self, routes: Routes) -> None:
        topic = ADMIN + "/persistent/{tenant}/{namespace}/{topic}"
        subscription = topic + "/subscription/{subscription}"
        routes.get(subscription + "/position/{count}", self.peek, Operation.PEEK_MESSAGES)
        routes.get(topic + "/ledger/{ledger}/entry/{entry}", self.get, Operation.PEEK_MESSAGES)
        routes.get(topic + "/examinemessage", self.examine, Operation.PEEK_MESSAGES)
        routes.post(subscription + "/analyzeBacklog", self.analyse, Operation.CONSUME)
        routes.put(topic + "/backlogSize", self.backlog_size, Operation.BACKLOG_SIZE)
        routes.delete(topic + "/truncate", self.truncate, Operation.TRUNCATE)
        routes.get(topic + "/internal-info", self.info, Operation.GET_STATS)

    async def peek(self, request: web.Request) -> web.Response:
        """One message, by its number among those that a subscription has before it."""
        topic = await self._unpartitioned(request, "messages are peeked at")
        number = int(request.match_info["count"])
        if number < 1:
            raise Refused(412, "messages are counted from 1")
        try:
            cursor = subscription_of(request, topic).cursor
        except SubscriptionNotFound:
            # Apache's brokers make the subscription, at the start of the topic, and answer from it. A call that reads
            # makes nothing here.
            if number > topic.ledger.ledgers.entries_total:
                raise Refused(404, "Message not found") from None
            position = topic.ledger.ledgers.position_at(number - 1)
            return await self._answer(entry_at(topic.ledger, position), "Message not found")
        return await self._answer(peek(topic.ledger, cursor, number), "Message not found")

    async def get(self, request: web.Request) -> web.Response:
        topic = await self._unpartitioned(request, "a message id belongs to")
        position = Position(int(request.match_info["ledger"]), int(request.match_info["entry"]))
        missing = f"Message id not found: {topic.name} has no {position}"
        return await self._answer(entry_at(topic.ledger, position), missing)

    async def examine(self, request: web.Request) -> web.Response:
        """A message by its place, counted from the start or from the end of the topic."""
        wanted_place = _number(request, "messagePosition", 1)
        topic = await self._unpartitioned(request, "messages are examined")
        total = topic.ledger.ledgers.entries_total
        if not total:
            raise Refused(412, "Could not examine messages due to the total message is zero")
        entry_number = min(max(wanted_place, 1), total)
        if request.query.get("initialPosition", "latest") != "earliest":
            if wanted_place > total:
                raise Refused(412, f"{topic.name} has {total} entries, so there is no {wanted_place}th from its end")
            entry_number = total - entry_number + 1
        position = topic.ledger.ledgers.position_at(entry_number - 1)
        return await self._answer(entry_at(topic.ledger, position), "Message not found")

    async def analyse(self, request: web.Request) -> web.Response:
        """Count what a subscription has not acknowledged, by reading it."""
        body = await body_of(request)
        start = None if body is None else position_from_json(body)
        topic = await self._unpartitioned(request, "a backlog is analysed")
        subscription = subscription_of(request, topic)
        config, clock = self._broker.config, self._broker.clock
        ends_s = clock.monotonic() + config.backlog_scan_ms_max / 1000
        scan = await analyse(
            topic.ledger,
            subscription.cursor,
            start,
            config.backlog_scan_entries_max,
            lambda: clock.monotonic() > ends_s,
        )
        counted: dict[str, Any] = {"entries": scan.entries, "messages": scan.messages}
        counted["markerMessages"] = scan.markers
        for what, of_filters in (("Entries", scan.entries), ("Messages", scan.messages)):
            # There are no entry filters here, so all is accepted.
            counted |= {f"filterRejected{what}": 0, f"filterAccepted{what}": of_filters, f"filterRescheduled{what}": 0}
        counted["aborted"] = scan.is_aborted
        for name, position in (("firstMessageId", scan.first), ("lastMessageId", scan.last)):
            if position is not None:
                counted[name] = str(position)
        return json_answer(counted)

    async def backlog_size(self, request: web.Request) -> web.Response:
        """About how many bytes come after a message id."""
        body = await body_of(request)
        if not isinstance(body, dict):
            raise BadJson("a message id is needed: ledgerId and entryId; -1 and -1 for all of the topic")
        start = position_from_json({"ledgerId": _NO_POSITION, "entryId": _NO_POSITION, **body})
        topic = await self._unpartitioned(request, "a position belongs to")
        return json_answer(topic.ledger.bytes_total if start <= EARLIEST else topic.ledger.bytes_after(start))

    async def truncate(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        partitions = await self._partitioned.count(name)
        if partitions:
            await self._owners.ask_partitions("DELETE", name, partitions, "/truncate", fine=(404,))
        else:
            await (await self._owners.loaded(request)).truncate()
        return done()

    async def info(self, request: web.Request) -> web.Response:
        """What the metadata store has of a topic; any broker may answer."""
        name = topic_of(request)
        now_ms = self._broker.now_ms()
        partitions = await self._partitioned.count(name)
        if partitions:
            stored = {}
            for number in range(partitions):
                partition = name.with_partition(number)
                shown = await managed_ledger_info(self._broker.store, partition.managed_ledger_name, now_ms)
                if shown is not None:
                    stored[partition.full] = shown
            return json_answer({"version": 0, "partitions": stored})
        shown = await managed_ledger_info(self._broker.store, name.managed_ledger_name, now_ms)
        if shown is None:
            raise TopicNotFound(f"Topic {name} not found")
        return json_answer(shown)

    async def _answer(self, reading: Coroutine[Any, Any, EntryLike | None], missing: str) -> web.Response:
        """The entry that is read, unpacked on another thread: its bytes and its metadata may be many.

        Raises Refused (404) with the text *missing*, and what *reading* raises.
        """
        with contextlib.closing(reading):
            async with self._unpacking:
                entry = await reading
                if entry is None:
                    raise Refused(404, missing)
                headers, payload = await asyncio.to_thread(_unpacked, entry)
        return web.Response(body=payload, headers=CIMultiDict(headers), content_type="application/json")

    async def _unpartitioned(self, request: web.Request, what: str) -> Topic:
        """The topic, which is not partitioned. Raises Refused (405), TopicNotFound."""
        name = topic_of(request)
        if await self._partitioned.count(name):
            raise Refused(405, f"{name} is partitioned: {what} one partition, name that")
        return await self._owners.loaded(request)


def _number(request: web.Request, name: str, default: int) -> int:
    """A whole number of the query. Raises Refused (400)."""
    text = request.query.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise Refused(400, f"{name} is a whole number, not {text[:100]!r}") from None


def _unpacked(entry: EntryLike) -> tuple[list[tuple[str, str]], bytes]:
    headers, payload = entry_answer(entry.position, entry.data)
    return headers, bytes(payload)
