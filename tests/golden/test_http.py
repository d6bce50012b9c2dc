"""HTTP calls and their answers (tests/vectors/http), replayed in order: the broker's, and the bookie's."""

import asyncio
import functools
import json
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, Final

from tests.golden.test_admin_bodies import CALLS, Replay
from tests.support.bookie_admin_world import recorded_cluster
from tests.support.golden import REPLAYS, Report, golden, load, names
from tests.unit.broker.admin.admin_world import AdminWorld, Answer

# Members whose value each broker chooses itself: only their presence and type are compared.
OWN: Final = re.compile(
    r"reason|message"  # texts for people
    r"|address|consumerName|activeConsumerName|producerName|brokerServiceUrl"
    r"|.*Size|size|bytes.*Counter"  # the recorded payloads are not known
)

# Members that count time or give an id: compared as "none yet" (0, -1) or "some".
SOME: Final = re.compile(r"(.*[tT]ime[sS]tamp|timestamp|earliestMsgPublishTime.*|.*AgeSeconds|ledgerId|cursorLedger)")
TIME_TEXT: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
POSITION: Final = re.compile(r"-?\d+:(-?\d+)")

# Answers about topics with another history here: only members and types are compared.
OTHER_HISTORY: Final = (194, 195, 196, 197)

# JSON objects whose members are named after things that a server has: their names are compared in a separate row.
OTHER_NAMES: Final = (17, 19)

# Texts that are each server's own version.
VERSIONS: Final = (14,)

# The metrics of two programs; only that they are metrics is compared.
METRICS: Final = 203

# The recorded broker had other bundles and another load; what a report says of a bundle: test_load_report.
LOAD_REPORT: Final = 201


# Where a topic is served.
LOOKUP: Final = 110

# The recorded broker had other topics: tests/unit/broker/admin/cluster/test_broker_stats.py compares what is told of
# each.
TOPICS_OF_BROKER: Final = 200


# Stats just after an unload: which clients have reconnected by then is a matter of chance.
AFTER_UNLOAD: Final = 168


# The first call after the clients of a topic have come.
WITH_CLIENTS: Final = 119

# The status of a compaction that has ended, when it was recorded.
AFTER_COMPACTION: Final = 155


class PatientReplay(Replay):
    """Wait until the effects of what clients did have arrived, before the next call is made."""

    async def call(self, number: int) -> tuple[Any, Answer]:
        if number in self.before:
            await self._world.run(self.before.pop(number))
        if number == WITH_CLIENTS:
            await self._until_permits_have_come()
        if number == AFTER_COMPACTION:
            await self._until_compacted()
        return await super().call(number)

    async def _until_compacted(self) -> None:
        for _ in range(100):
            status = (await self._world.call(self.side, "GET", "/admin/v2/persistent/t1/n1/top/compaction")).json
            if status["status"] != "RUNNING":
                return
            await asyncio.sleep(0.02)

    async def _until_permits_have_come(self) -> None:
        for _ in range(100):
            stats = (await self._world.call(self.side, "GET", "/admin/v2/persistent/t1/n1/top/stats")).json
            if stats["subscriptions"]["live"]["lastConsumedFlowTimestamp"]:
                return
            await asyncio.sleep(0.02)


@functools.cache
def answers() -> dict[int, Answer]:
    """Ours to all calls, made in their order against one broker."""

    async def run() -> dict[int, Answer]:
        async with AsyncExitStack() as stack:
            world = AdminWorld(stack)
            await world.open()
            replay = PatientReplay(world, await world.side())
            await replay.prepare()
            return {number: (await replay.call(number))[1] for number in CALLS}

    return asyncio.run(run())


@golden(
    "http/[012]*.json",
    how={REPLAYS},
    compared="status, content type, Location and Allow; text; JSON member by member (order aside): names and types of "
    "all, values of all but texts for people, addresses, names that a server makes up and sizes; of times and ids "
    "whether there is one, of positions the entry",
)
def test_calls_of_the_broker(report: Report) -> None:
    number = int(report.vector.removeprefix("http/")[:3])
    golden_answer = load(report.vector)["response"]
    ours = answers()[number]
    if ours.status != golden_answer["status"]:
        report.differs("status", f"{ours.status}, Apache says {golden_answer['status']}: {ours.text[:200]}")
        return
    report.fine.add("status")
    theirs = {name.lower(): value for name, value in golden_answer["headers"].items()}
    own = {name.lower(): value for name, value in ours.headers.items()}
    for name in ("content-type", "location", "allow"):
        with report.row(name):
            assert comparable_header(name, own.get(name)) == comparable_header(name, theirs.get(name))
    with report.row("body"):
        check_body(number, golden_answer, ours)
    if "json" in golden_answer and number != TOPICS_OF_BROKER:
        compare(report, number, golden_answer["json"], as_of_4_0(number, json.loads(ours.text)))


def as_of_4_0(number: int, body: Any) -> Any:
    """An answer without what stands in lookups and load reports since 5.0: the broker's id, its internal listener."""
    if number in (LOOKUP, LOAD_REPORT):
        assert body.pop("brokerId")
    if number == LOAD_REPORT:
        assert body["advertisedListeners"].pop("internal")
    return body


def comparable_header(name: str, value: str | None) -> Any:
    if value is None or name == "location":
        return value
    return {part.strip().lower() for part in re.split("[;,]", value)}


def check_body(number: int, golden_answer: dict[str, Any], ours: Answer) -> None:
    if "json" in golden_answer:
        json.loads(ours.text)
    elif number == METRICS:
        assert re.search(r"^# TYPE \w+ (gauge|counter|histogram|summary)$", ours.text, re.MULTILINE)
    elif number in VERSIONS:
        assert re.fullmatch(r"\d+\.\d+\.\d+", ours.text)
    elif "text" in golden_answer:
        assert ours.text == golden_answer["text"]
    else:
        assert ours.text == ""


def compare(report: Report, number: int, theirs: Any, ours: Any) -> None:
    if number == AFTER_UNLOAD:
        for answer in (theirs, ours):
            del answer["publishers"], answer["subscriptions"]["live"]
    if number == LOAD_REPORT:
        for answer in (theirs, ours):
            del answer["lastStats"], answer["bundles"]
        del ours["brokerVersion"]  # for the extensible load manager, which names it so
    if number in OTHER_NAMES:
        if theirs.keys() != ours.keys():
            report.differs("names", f"{len(ours)} members, Apache has {len(theirs)}")
        theirs = {name: value for name, value in theirs.items() if name in ours}
        ours = {name: value for name, value in ours.items() if name in theirs}
    for path, problem in differences(theirs, ours, values=number not in (*OTHER_HISTORY, *OTHER_NAMES, LOAD_REPORT)):
        if problem is None:
            report.fine.add(path)
        else:
            report.differs(path, problem)


def differences(theirs: Any, ours: Any, *, values: bool, path: str = "") -> Iterator[tuple[str, str | None]]:
    """(path, what is wrong or None) for every value below."""
    if type(theirs) is not type(ours):
        yield path, f"{type(ours).__name__} {ours!r:.60}, Apache has {type(theirs).__name__} {theirs!r:.60}"
    elif isinstance(theirs, dict):
        for name in theirs.keys() | ours.keys():
            here = f"{path}.{name}"
            if name not in ours:
                yield here, f"missing, Apache has {theirs[name]!r:.60}"
            elif name not in theirs:
                yield here, f"{ours[name]!r:.60}, Apache does not have it"
            else:
                yield from differences(theirs[name], ours[name], values=values, path=here)
    elif isinstance(theirs, list) and not any(isinstance(one, dict) for one in theirs):
        fits = not values or theirs == ours
        yield path, None if fits else f"{ours!r:.80}, Apache has {theirs!r:.80}"
    elif isinstance(theirs, list):
        if values and len(theirs) != len(ours):
            yield f"{path}[]", f"{ours!r:.80}, Apache has {theirs!r:.80}"
        for at, (one, other) in enumerate(zip(theirs, ours, strict=False)):
            yield from differences(one, other, values=values, path=f"{path}[{at}]")
    elif not values or is_equal(path.rpartition(".")[2], theirs, ours):
        yield path, None
    else:
        yield path, f"{ours!r:.60}, Apache has {theirs!r:.60}"


def is_equal(name: str, theirs: Any, ours: Any) -> bool:
    if OWN.fullmatch(name):
        return bool(theirs) == bool(ours)
    if SOME.fullmatch(name) and isinstance(theirs, int):
        return bool((theirs > 0) == (ours > 0))
    if isinstance(theirs, str):
        if TIME_TEXT.fullmatch(theirs):
            return TIME_TEXT.fullmatch(ours) is not None
        found, other = POSITION.fullmatch(theirs), POSITION.fullmatch(ours)
        if found and other:
            return bool(found[1] == other[1])
    return bool(theirs == ours)


# ------------------------------------------------------------------------------------------- bookie


# Members that are numbers of this bookie's disks or moments.
BOOKIES_OWN: Final = re.compile(r"freeSpace|totalSpace|last\w*CompactionTime|ctime")

# Texts: sizes, names of files, the port of a server; what is left of them is the same everywhere.
MADE_UP: Final = (
    (re.compile(r"\d+\([\d.]+[KMGT]B\)"), "SIZE"),
    (re.compile(r"[0-9a-f]+\.txn"), "JOURNAL"),
    (re.compile(r"listening on 127\.0\.0\.1:\d+"), "listening on PORT"),
    (re.compile(r"Journal Id - \d+"), "Journal Id - ID"),
    (re.compile(r"Pos - \d+"), "Pos - N"),
)

SETTINGS: Final = 504
BOOKIE_METRICS: Final = 503


@functools.cache
def bookie_answers() -> dict[int, Answer]:
    """Ours to all calls, made in their order against one bookie of the recorded cluster."""

    async def run() -> dict[int, Answer]:
        async with recorded_cluster() as call:
            found = {}
            for name in names("http/5*.json"):
                asked = load(name)["request"]
                found[number_of(name)] = await call(asked["method"], asked["path"], asked.get("body"))
            return found

    return asyncio.run(run())


def number_of(vector: str) -> int:
    return int(vector.removeprefix("http/")[:3])


@golden(
    "http/5*.json",
    how={REPLAYS},
    compared="status; content type where Apache names one (else ours says JSON or text); texts of success; JSON member "
    "by member: names, types and values of all but sizes, times, names of journal files and the port of the process; "
    "of the settings the names; that metrics are metrics",
)
def test_calls_of_the_bookie(report: Report) -> None:
    number = number_of(report.vector)
    golden_answer = load(report.vector)["response"]
    ours = bookie_answers()[number]
    if ours.status != golden_answer["status"]:
        report.differs("status", f"{ours.status}, Apache says {golden_answer['status']}: {ours.text[:200]}")
        return
    report.fine.add("status")
    theirs = golden_answer["headers"].get("content-type")
    usual = "application/json" if "json" in golden_answer else "text/plain; charset=utf-8"
    with report.row("content-type"):
        assert comparable_header("content-type", ours.headers["Content-Type"]) == comparable_header(
            "content-type", theirs or usual
        )
    if "json" in golden_answer:
        compare_bookies(report, number, golden_answer["json"], json.loads(ours.text))
        return
    with report.row("body"):
        if number == BOOKIE_METRICS:
            assert re.search(r"^# TYPE \w+ (gauge|counter|histogram|summary)$", ours.text, re.MULTILINE)
        elif golden_answer["status"] == 200:
            assert ours.text == golden_answer["text"]
        else:
            assert ours.text  # a reason


def compare_bookies(report: Report, number: int, theirs: Any, ours: Any) -> None:
    theirs, ours = without_made_up(theirs), without_made_up(ours)
    if number == SETTINGS:
        if theirs.keys() != ours.keys():
            report.differs("names", f"{len(ours)} members, Apache has {len(theirs)}")
        theirs, ours = {name: "" for name in theirs if name in ours}, dict.fromkeys(theirs.keys() & ours.keys(), "")
    for path, problem in differences(theirs, ours, values=True):
        if problem is None:
            report.fine.add(path)
        else:
            report.differs(path, problem)


def without_made_up(value: Any) -> Any:
    """Replace values that only that server can know by a word."""
    if isinstance(value, dict):
        return {
            without_made_up(name): "OWN" if BOOKIES_OWN.fullmatch(name) and member > 0 else without_made_up(member)
            for name, member in value.items()
        }
    if isinstance(value, list):
        return [without_made_up(member) for member in value]
    if isinstance(value, str):
        for pattern, word in MADE_UP:
            value = pattern.sub(word, value)
    return value
