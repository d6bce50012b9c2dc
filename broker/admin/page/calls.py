"""The page for people at `/`: tenants, namespaces, topics, subscriptions, who is connected, ledgers on bookies.

    /                                        the page
    /page/overview                           tenants and namespaces that the caller may see, brokers, the last hour
    /page/namespaces/TENANT/NAMESPACE        its topics, on whichever broker; `?find=` a part of the name
    /page/topics/DOMAIN/TENANT/NAMESPACE/T   one topic, as its owner answers
    /page/ledgers/DOMAIN/…                   the ledgers of a topic, and the bookies they are on
    /page/brokers                            the addresses of all brokers, for the command line
    /page/served, /page/served/…             what this broker serves: for the other brokers, which add it to theirs

Rules:

1. Nothing is shown that the caller may not see: a namespace needs the right to list its topics, a topic the right to
   its statistics. A caller that may see only some topics of a namespace gets those, and no sums.
2. Looking changes nothing: no bundle is acquired and no topic opened.
3. A broker that does not answer is named, and the others are shown.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from aiohttp import web

from broker.admin.deputies import as_own_work
from broker.admin.http import Refused, caller_of, json_answer, namespace_of, topic_of
from broker.admin.numbers.metrics import certificate_left_s, open_keys, topic_numbers, unread_bytes
from broker.admin.numbers.stats import StatsOptions, topic_stats
from broker.admin.owners import Owners
from broker.admin.page.facts import (
    NAMESPACES_SHOWN_MAX,
    Storage,
    row_of,
    shown_rows,
    shown_stats,
    sum_of,
    sums_by_namespace,
)
from broker.admin.page.files import FILES, PREFIX
from broker.admin.page.history import STEP_MS, WHOLE, Counts, History, shown_hour
from broker.admin.page.signs import balance_sign, certificate_sign, keys_sign, quota_sign, unread_sign
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.errors import NoSuchTenant, NotAuthenticated, NotAuthorized, TopicNotFound
from broker.ownership.ownership import BundleOwnership
from broker.ownership.rules import BrokerAddress
from broker.records.json_records import NoRecord
from broker.security.authorization import Need, Operation, about_namespace, about_tenant, about_topic
from broker.topic.topic import Topic
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.pages.serving import INDEX, serve_file
from magnetar_core.runtime.types import Corruption, MagnetarError
from magnetar_core.security.caller import Caller
from magnetar_core.topics.topic_name import TopicName, TopicNameError

log = logging.getLogger(__name__)

# The page asks again after some seconds, so another broker that takes longer is shown as one that does not answer.
_ASK_S: Final = 5.0

# Calls of pages that are answered at the same time: each may ask all other brokers.
PAGE_CALLS_AT_ONCE: Final = 20

# How long the list of tenants and namespaces may be old: each is one request to the metadata store.
_TREE_S: Final = 10.0

# Ledgers of a topic whose bookies are shown, the newest: a record of the metadata store each.
LEDGERS_SHOWN_MAX: Final = 30

# Signs of trouble that a broker tells of: who has more has one cause for all of them.
SIGNS_MAX: Final = 20

# Topics whose counters are taken before other work gets its turn: some 20 µs each.
TOPICS_PER_TURN: Final = 200


class _Answers(NamedTuple):
    """What the other brokers answered, by broker id."""

    answers: dict[str, Any]
    problems: dict[str, str]


class PageApi:
    """The page, its files and its calls."""

    def __init__(
        self,
        broker: Broker,
        ownership: BundleOwnership,
        owners: Owners,
        version: str,
        storage: Storage | None = None,
    ) -> None:
        """*storage*: what stores messages in the same process."""
        self._storage = storage
        self._broker = broker
        self._ownership = ownership
        self._owners = owners
        self._version = version
        self._ledgers = LedgerStore(broker.store)
        self._history = History(broker.now_ms())
        self._tree: dict[str, list[str]] = {}
        self._tree_until_s = float("-inf")
        self._under_way = 0

    def add_routes(self, routes: Routes) -> None:
        routes.get("/", serve_file(FILES[INDEX]), Operation.PROBE)
        for name, path in FILES.items():
            routes.get(PREFIX + name, serve_file(path), Operation.PROBE)
        topic = "{domain}/{tenant}/{namespace}/{topic}"
        # What the caller may see is found out for each thing on its own.
        routes.get(PREFIX + "overview", self.overview, Operation.ASK_BROKER)
        routes.get(PREFIX + "namespaces/{tenant}/{namespace}", self.namespace, Operation.ASK_BROKER)
        routes.get(PREFIX + "topics/" + topic, self.topic, Operation.GET_STATS)
        routes.get(PREFIX + "ledgers/" + topic, self.ledgers, Operation.GET_STATS)
        routes.get(PREFIX + "brokers", self.brokers, Operation.ASK_BROKER)
        routes.get(PREFIX + "served", self.served, Operation.BROKER)
        routes.get(PREFIX + "served/{tenant}/{namespace}", self.served_namespace, Operation.BROKER)

    # -------------------------------------------------------------------------------- the last hour

    async def remember(self) -> None:
        """Take the counters of all open topics, step by step. Never ends."""
        clock = self._broker.clock
        while True:
            await clock.sleep((STEP_MS - clock.wall_ms() % STEP_MS) / 1000)
            await self.take_counts()

    async def take_counts(self) -> None:
        looked = self._history.begin()
        for number, topic in enumerate(list(self._broker.topics.values())):
            looked.add(topic.name.full, topic.name.namespace, _counts_of(topic))
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
        self._history.end(looked, self._broker.now_ms())

    # -------------------------------------------------------------------------------- what the page asks for

    async def overview(self, request: web.Request) -> web.Response:
        with self._begin_call():
            caller = caller_of(request)
            sees_all = await self._is_allowed(caller, Need(Operation.BROKER))
            other_answers = await self._ask_others("served")
            mine = self._served()
            answers = {self._ownership.broker_id: mine, **other_answers.answers}
            sums = sums_by_namespace(_part(answer, "namespaces") for answer in answers.values())
            tenants, namespaces = await self._visible(caller)
            rows = [{"name": name, "is_whole": whole, **(sums.get(name, sum_of(())) if whole else {})}
                    for name, whole in namespaces]  # fmt: skip
            rows.sort(key=lambda row: (-row.get("rate_in", 0) - row.get("rate_out", 0), row["name"]))
            now_ms = self._broker.now_ms()
            hours = (answer.get("hour") for answer in answers.values() if isinstance(answer, dict))
            return json_answer(
                {
                    **self._facts_for(caller),
                    "now_ms": now_ms,
                    "sees_all": sees_all,
                    "tenants": tenants,
                    "namespaces": rows[:NAMESPACES_SHOWN_MAX],
                    "namespaces_total": len(rows),
                    "sum": sum_of(row for row in rows if row["is_whole"]),
                    "brokers": await self._brokers(other_answers) if sees_all else [],
                    "signs": self._all_signs(answers) if sees_all else [],
                    "storage": self._storage() if sees_all and self._storage is not None else None,
                    "silent_brokers": len(other_answers.problems),
                    "hour": shown_hour(hours, now_ms) if sees_all else None,
                }
            )

    async def namespace(self, request: web.Request) -> web.Response:
        with self._begin_call():
            caller, namespace = caller_of(request), namespace_of(request)
            is_whole = await self._is_allowed(caller, about_namespace(Operation.GET_TOPICS, namespace))
            if not is_whole and not await self._sees_some(caller, namespace):
                raise Refused(403, f"{caller.role} may not see the topics of {namespace}")
            await self._broker.namespace(namespace)
            other_answers = await self._ask_others(f"served/{namespace}")
            answers = {self._ownership.broker_id: self._served_namespace(namespace), **other_answers.answers}
            rows = {broker: list(_part_list(answer, "topics")) for broker, answer in answers.items()}
            names = set(await self._broker.topics_of_namespace(namespace, persistent=True, non_persistent=True))
            all_rows = [row for broker_rows in rows.values() for row in broker_rows]
            names |= {row["name"] for row in all_rows if isinstance(row.get("name"), str)}
            if not is_whole:
                names = {name for name in names if await self._sees_topic(caller, name)}
            shown_topics, total = shown_rows(names, rows, request.query.get("find", ""))
            now_ms = self._broker.now_ms()
            hours = (answer.get("hour") for answer in answers.values() if isinstance(answer, dict))
            return json_answer(
                {
                    **self._facts_for(caller),
                    "now_ms": now_ms,
                    "is_whole": is_whole,
                    "topics": shown_topics,
                    "topics_total": total,
                    "sum": sum_of(row for row in all_rows if row.get("name") in names),
                    "silent_brokers": len(other_answers.problems),
                    "hour": shown_hour(hours, now_ms) if is_whole else None,
                }
            )

    async def topic(self, request: web.Request) -> web.Response:
        with self._begin_call():
            name = topic_of(request)
            owner, address = await self._owner_of(name)
            facts = self._facts_for(caller_of(request))
            if address is not None and address != self._ownership.address and "here" not in request.query:
                path = f"topics/{name.rest_path}?here=true"
                answer, problem = await self._ask(owner, address, path)
                if problem:
                    raise Refused(503, f"{name} is served by {owner}, which does not tell of it: {problem}")
                return json_answer({**answer, **facts, "broker": owner})
            topic = self._broker.topics.get(name)
            now_ms = self._broker.now_ms()
            if topic is None:
                if not await self._broker.ledgers.exists(name.managed_ledger_name):
                    raise TopicNotFound(f"Topic {name} not found")
                return json_answer({**facts, "now_ms": now_ms, "name": name.full, "is_open": False, "broker": owner})
            return json_answer(
                {
                    **facts,
                    "now_ms": now_ms,
                    **row_of(name.full, topic_numbers(topic)),
                    "broker": owner,
                    "stats": shown_stats(await topic_stats(topic, owner, StatsOptions())),
                    "hour": shown_hour([self._history.hour(name.full)], now_ms),
                }
            )

    async def ledgers(self, request: web.Request) -> web.Response:
        with self._begin_call():
            name = topic_of(request)
            owner, address = await self._owner_of(name)
            if address is not None and address != self._ownership.address and "here" not in request.query:
                path = f"ledgers/{name.rest_path}?here=true"
                answer, problem = await self._ask(owner, address, path)
                if problem:
                    raise Refused(503, f"{name} is served by {owner}, which does not tell of it: {problem}")
                return json_answer(answer)
            topic = self._broker.topics.get(name)
            listed = [] if topic is None or not name.is_persistent else _ledgers_of(topic.ledger.stats())
            newest = listed[-LEDGERS_SHOWN_MAX:]
            shown = await asyncio.gather(*(self._ledger(ledger) for ledger in reversed(newest)))
            return json_answer({"ledgers": shown, "ledgers_total": len(listed)})

    async def _ledger(self, ledger: Mapping[str, Any]) -> dict[str, Any]:
        """One ledger with its bookies. What cannot be read is explained in words."""
        shown = {"ledger_id": ledger["ledgerId"], "entries": ledger["entries"], "size": ledger["size"]}
        try:
            metadata = (await self._ledgers.read(ledger["ledgerId"])).metadata
        except MagnetarError as error:
            return {**shown, "problem": str(error)}
        return {
            **shown,
            "state": metadata.state.name.lower(),
            "quorums": [metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum],
            "segments": [[segment.first_entry_id, list(segment.ensemble)] for segment in metadata.segments[-5:]],
        }

    # -------------------------------------------------------------------------------- what brokers ask each other

    async def brokers(self, request: web.Request) -> web.Response:
        """The addresses of the HTTP of all brokers, which lookups give one by one. A command that holds a token goes on
        to these only."""
        addresses = [self._broker.address, *(await self._ownership.brokers()).values()]
        return json_answer(
            sorted({url for address in addresses for url in (address.http_url, address.https_url) if url})
        )

    async def served(self, request: web.Request) -> web.Response:
        return json_answer(self._served())

    def _served(self) -> dict[str, Any]:
        by_namespace: dict[str, list[dict[str, Any]]] = {}
        for topic in self._open_topics():
            by_namespace.setdefault(topic.name.namespace, []).append(row_of("", topic_numbers(topic)))
        return {
            "namespaces": {name: sum_of(rows) for name, rows in by_namespace.items()},
            "connections": len(self._broker.server.clients),
            "version": self._version,
            "hour": self._history.hour(WHOLE),
            "bundles": len(self._ownership.owned_bundles),
            "signs": list(islice(self._signs(), SIGNS_MAX)),
            "open_keys": open_keys(self._broker),
        }

    def _all_signs(self, answers: Mapping[str, Any]) -> list[str]:
        bundles_by_broker = {name: answer.get("bundles") for name, answer in answers.items()}
        bundles = {name: count for name, count in bundles_by_broker.items() if isinstance(count, int)}
        signs = [str(sign) for answer in answers.values() for sign in answer.get("signs") or ()]
        return [sign for sign in (balance_sign(bundles), *signs) if sign]

    def _signs(self) -> Iterator[str]:
        """What will be trouble here."""
        if sign := certificate_sign(certificate_left_s(self._broker)):
            yield f"broker {self._ownership.broker_id}: {sign}"
        if sign := keys_sign(open_keys(self._broker)):
            yield f"broker {self._ownership.broker_id}: {sign}"
        for topic in self._open_topics():
            numbers = topic_numbers(topic)
            used, limit = (numbers[f"pulsar_storage_backlog_{name}"] for name in ("size", "quota_limit"))
            if sign := quota_sign(used, limit):
                yield f"{topic.name}: {sign}"
            for name, subscription in topic.subscriptions.items():
                if not subscription.consumers:
                    unread = unread_bytes(topic, subscription.cursor)
                    if sign := unread_sign(subscription.cursor.backlog(), unread, 0):
                        yield f"{name} of {topic.name}: {sign}"

    async def served_namespace(self, request: web.Request) -> web.Response:
        return json_answer(self._served_namespace(namespace_of(request)))

    def _served_namespace(self, namespace: str) -> dict[str, Any]:
        topics = [topic for topic in self._open_topics() if topic.name.namespace == namespace]
        rows = [row_of(topic.name.full, topic_numbers(topic)) for topic in topics]
        return {"topics": rows, "hour": self._history.hour(namespace)}

    def _open_topics(self) -> Iterator[Topic]:
        return (topic for topic in list(self._broker.topics.values()) if not topic.name.is_system)

    async def _ask_others(self, path: str) -> _Answers:
        """What the other brokers answer (rule 3)."""
        others = {
            name: address
            for name, address in (await self._ownership.brokers()).items()
            if address != self._ownership.address
        }
        with as_own_work():  # rule 1 is kept here, for the answers of all of them
            answers = await asyncio.gather(*(self._ask(name, address, path) for name, address in others.items()))
        by_name = dict(zip(others, answers, strict=True))
        return _Answers(
            {name: answer for name, (answer, problem) in by_name.items() if not problem},
            {name: problem for name, (_, problem) in by_name.items() if problem},
        )

    async def _ask(self, name: str, address: BrokerAddress, path: str) -> tuple[dict[str, Any], str]:
        """What a broker answers, or why it does not."""
        base = address.web_url(secure=self._owners.uses_tls)
        if not base:
            return {}, "it has no HTTP"
        try:
            async with asyncio.timeout(_ASK_S):
                answer = await self._owners.ask("GET", base + PREFIX + path, name)
        except Refused as error:
            return {}, str(error)
        except TimeoutError:
            return {}, f"no answer within {_ASK_S:.0f} s"
        except ValueError:
            return {}, "its answer is not JSON"
        return (answer, "") if isinstance(answer, dict) else ({}, "its answer is not an object")

    async def _brokers(self, answers: _Answers) -> list[dict[str, Any]]:
        rows = []
        for name, address in sorted((await self._ownership.brokers()).items()):
            answer = answers.answers.get(name, {})
            connections = len(self._broker.server.clients) if address == self._ownership.address else None
            rows.append(
                {
                    "name": name,
                    "url": address.web_url(secure=self._owners.uses_tls),
                    "connections": answer.get("connections", connections),
                    "version": answer.get("version", self._version if connections is not None else None),
                    "problem": answers.problems.get(name, ""),
                }
            )
        return rows

    # -------------------------------------------------------------------------------- what a caller may see

    async def _visible(self, caller: Caller) -> tuple[list[str], list[tuple[str, bool]]]:
        """The tenants whose namespaces the caller may list, and the namespaces of which it may see something: all of
        their topics, or some."""
        tenants, namespaces = [], []
        for tenant, names in (await self._all_namespaces()).items():
            if await self._is_allowed(caller, about_tenant(Operation.LIST_NAMESPACES, tenant)):
                tenants.append(tenant)
            for name in names:
                if await self._is_allowed(caller, about_namespace(Operation.GET_TOPICS, name)):
                    namespaces.append((name, True))
                elif await self._sees_some(caller, name):
                    namespaces.append((name, False))
        return tenants, namespaces

    async def _all_namespaces(self) -> dict[str, list[str]]:
        now_s = self._broker.clock.monotonic()
        if now_s >= self._tree_until_s:
            tree = {}
            for tenant in await self._broker.tenancy.tenants():
                try:
                    tree[tenant] = await self._broker.tenancy.namespaces(tenant)
                except NoRecord:
                    continue  # it was deleted meanwhile
            self._tree, self._tree_until_s = tree, now_s + _TREE_S
        return self._tree

    async def _sees_some(self, caller: Caller, namespace: str) -> bool:
        """Whether a permission on one of its topics lets the caller see that topic."""
        try:
            permissions = (await self._broker.namespace(namespace)).permissions
        except TopicNotFound:
            return False
        for name in permissions.topics:
            if await self._sees_topic(caller, name):
                return True
        return False

    async def _sees_topic(self, caller: Caller, name: str) -> bool:
        try:
            topic = TopicName.parse(name)
        except TopicNameError:
            return False
        return await self._is_allowed(caller, about_topic(Operation.GET_STATS, topic))

    async def _is_allowed(self, caller: Caller, need: Need) -> bool:
        try:
            await self._broker.access.check(caller, need)
        except (NotAuthorized, NotAuthenticated, NoSuchTenant):
            return False
        return True

    # -------------------------------------------------------------------------------- parts of answers

    def _facts_for(self, caller: Caller) -> dict[str, Any]:
        return {
            "cluster": self._broker.config.cluster_name,
            "answered_by": self._ownership.broker_id,
            "caller": caller.role if self._broker.doors is not None else None,
        }

    async def _owner_of(self, name: TopicName) -> tuple[str, BrokerAddress | None]:
        """The id and address of the topic's owner; none while its bundle is free (rule 2)."""
        policies = await self._broker.namespace(name.namespace)
        try:
            owner = await self._ownership.owner_of(policies.bundles.bundle_of(name))
            if owner is None:
                return "", None
            ids = {address: broker for broker, address in (await self._address_list())}
        except (MetadataError, Corruption) as error:
            raise Refused(500, str(error)) from error
        return ids.get(owner.native_url, owner.native_url), owner

    async def _address_list(self) -> list[tuple[str, str]]:
        return [(broker, address.native_url) for broker, address in (await self._ownership.brokers()).items()]

    def _begin_call(self) -> "_Turn":
        if self._under_way >= PAGE_CALLS_AT_ONCE:
            raise Refused(503, f"{PAGE_CALLS_AT_ONCE} pages are being answered; try again")
        return _Turn(self)


class _Turn:
    """Counts a call while it is under way."""

    def __init__(self, api: PageApi) -> None:
        self._api = api

    def __enter__(self) -> None:
        self._api._under_way += 1

    def __exit__(self, *_: object) -> None:
        self._api._under_way -= 1


def _ledgers_of(stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The ledgers of `internalStats`; the one that is written to with what it has so far."""
    listed = [dict(ledger) for ledger in stats["ledgers"]]
    if listed and not listed[-1]["entries"]:
        listed[-1] |= {"entries": stats["currentLedgerEntries"], "size": stats["currentLedgerSize"]}
    return listed


def _counts_of(topic: Topic) -> Counts:
    subscriptions = list(topic.subscriptions.values())
    return Counts(
        topic.messages_in,
        sum(subscription.counted.messages for subscription in subscriptions),
        topic.bytes_in,
        sum(subscription.counted.bytes for subscription in subscriptions),
        sum(subscription.cursor.backlog() for subscription in subscriptions),
    )


def _part(answer: object, member: str) -> Mapping[str, Any]:
    value = answer.get(member) if isinstance(answer, dict) else None
    return value if isinstance(value, dict) else {}


def _part_list(answer: object, member: str) -> Iterator[dict[str, Any]]:
    value = answer.get(member) if isinstance(answer, dict) else None
    return (row for row in (value if isinstance(value, list) else []) if isinstance(row, dict))
