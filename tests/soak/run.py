"""A soak: rounds of load and faults on one cluster, each checked to the last message before the next begins.

    round ──▶ topic of 8 partitions, publishers, consumers, readers          the plan: schedule.py
          ──▶ faults                                                         nemesis.py
          ──▶ faults end, publishers finish, everybody is given everything   or: who waits for what
          ──▶ what is left of each subscription is taken, backlog 0
          ──▶ fresh readers: each confirmed message once, in order, where it was confirmed
          ──▶ the topic is deleted; the servers' memory is looked at

The harness keeps the books of one round and nothing of those before, so it may run as long as one likes.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, Final

from magnetar.inspect.broker_admin import AdminClient, AdminError
from magnetar.testing.servers import ServerFailed
from tests.soak import memory
from tests.soak.books import Given, Place, Problems, Published, check_stored, runs
from tests.soak.clients import ClientProcess, NotAvailable, build
from tests.soak.nemesis import Nemesis
from tests.soak.schedule import PARTITIONS, Round, draw_round
from tests.soak.servers import SMALL_DISK, SoakCluster, soak_cluster
from tests.soak.streams import UNBATCHED, Stream, publisher_of, publisher_stream, streams_of

LANGUAGES: Final = ("python", "java", "go")

# Messages a second and partition: ledgers of 20 entries last seconds, and two cores carry cluster and clients.
RATE: Final = 25

ROUND_S: Final = 45.0
"""How long faults last; with start and checks a round takes about a minute and a half."""

# No test asserts a time: these limits end a run that makes no progress any more.
STALL_S: Final = 90.0
WHOLE_TIMEOUT_S: Final = 120.0
_LOOK_S: Final = 0.3

Remark = Callable[[str], None]


class SoakFailed(Exception):
    """The problems that were found; the folder is kept."""


class Tail:
    """The new lines of a growing file since the last call; a line that is not whole yet is left for the next one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> Iterator[str]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line.decode("ascii", errors="replace").rstrip("\n")


class Ledger:
    """The books of a round, kept up with the clients' files."""

    def __init__(self, directory: Path, streams: Sequence[Stream]) -> None:
        self.problems = Problems()
        self.published = {number: Published(number) for number in range(PARTITIONS)}
        self.given = {stream.name: Given(stream.name, stream.kind, stream.partitions, UNBATCHED) for stream in streams}
        self._tails: list[tuple[Tail, Published | Given]] = [
            *(
                (Tail(directory / f"{publisher_stream(number)}.events"), book)
                for number, book in self.published.items()
            ),
            *((Tail(directory / f"{name}.events"), book) for name, book in self.given.items()),
        ]

    def look(self) -> None:
        for tail, book in self._tails:
            for line in tail.lines():
                try:
                    book.feed(line, self.problems)
                except (ValueError, IndexError) as error:
                    raise SoakFailed(f"a client wrote {line!r}: {error}") from None

    @property
    def sent(self) -> dict[int, int]:
        return {number: book.sent for number, book in self.published.items()}

    @property
    def pending(self) -> int:
        return sum(book.pending for book in self.published.values())

    @property
    def wanting(self) -> int:
        """Messages that some subscription or reader has not been given yet."""
        sent = self.sent
        return sum(sum(sent[number] for number in book.parts) - book.count for book in self.given.values())

    def waits(self) -> str:
        """A text that says which stream waits for which messages."""
        sent, told = self.sent, []
        for publisher in self.published.values():
            if publisher.pending:
                told.append(f"{publisher_stream(publisher.partition)} waits for {publisher.pending} confirmations")
        for book in self.given.values():
            for partition, numbers in book.missing(sent).items():
                told.append(
                    f"{book.name}, partition {partition}: {len(numbers)} of {sent[partition]} not given: "
                    f"{runs(iter(numbers))}"
                )
        return "\n".join(told)


class Soak:
    """A cluster and what has been seen on it so far."""

    def __init__(
        self, cluster: SoakCluster, directory: Path, seed: str, commands: dict[str, list[str]], remark: Remark
    ) -> None:
        self._cluster = cluster
        self._directory = directory
        self._seed = seed
        self._commands = commands
        self._remark = remark
        self.samples: list[memory.Sample] = []
        self._highest: dict[tuple[str, int], int] = {}
        self.messages = self.deliveries = self.faults = 0

    # ------------------------------------------------------------------------------ a round

    def round(self, number: int, seconds: float) -> None:
        """Raises SoakFailed."""
        small_disk = None if self._cluster.why_no_small_disk else SMALL_DISK
        plan = draw_round(self._seed, number, seconds, small_disk=small_disk)
        self._remark(
            f"round {number} of seed {self._seed}: {seconds:.0f} s, E/W/A {'/'.join(map(str, plan.quorums))}, "
            f"{'consumed ledgers are deleted' if plan.trims else 'everything is kept'}, {len(plan.faults)} faults"
        )
        for fault in plan.faults:
            self._remark(f"  plan {fault}")
        place = self._directory / plan.name
        place.mkdir()
        languages = list(self._commands)
        streams = streams_of(languages, trims=plan.trims)
        topic = self._make_topic(plan, streams)
        ledger = Ledger(place, streams)
        spec = self._spec(place, topic, f"{self._seed}/{number}")
        clients = [
            ClientProcess(
                self._commands[language],
                language,
                {**spec, "publish": [each for each in range(PARTITIONS) if publisher_of(each, languages) == language]},
                [stream for stream in streams if stream.language == language],
            )
            for language in languages
        ]
        try:
            self._faults(plan, topic, ledger, clients)
            for client in clients:
                client.tell("finish")
            was_given = self._waited(
                lambda: ledger.pending == 0 and ledger.wanting == 0, ledger, clients,
                lambda: ledger.pending + ledger.wanting,
            )  # fmt: skip
            if not was_given:
                self._keep_stats(place, topic, "stuck")
        finally:
            for client in clients:
                client.end()
        ledger.look()
        stuck = "" if was_given else ledger.waits()
        self._drain(topic, spec, streams, ledger)
        self._judge(place, topic, spec, plan, ledger, stuck)
        self.messages += sum(ledger.sent.values())
        self.deliveries += sum(book.count + book.repeated for book in ledger.given.values())
        self.faults += len(plan.faults)
        self._remark(
            f"  {sum(ledger.sent.values())} messages, each given to all of "
            + ", ".join(f"{book.name} ({book.repeated} again)" for book in ledger.given.values())
        )
        self._clean_up(place, topic)

    def _spec(self, place: Path, topic: str, seed: str) -> dict[str, Any]:
        return {
            "mode": "live", "service_url": self._cluster.service_url, "topic": topic, "directory": str(place),
            "seed": seed, "rate": RATE, "began_ms": int(time() * 1000) - 60_000, "publish": [],
        }  # fmt: skip

    def _make_topic(self, plan: Round, streams: Sequence[Stream]) -> str:
        admin = self._admin()
        self._cluster.fresh(plan.name)
        namespace = self._cluster.namespace
        admin.set_deduplication(namespace, True)
        kept = 0 if plan.trims else -1
        admin.set_retention(namespace, minutes=kept, megabytes=kept)
        ensemble, write, ack = plan.quorums
        admin.call(
            "POST", f"{admin.namespace_path(namespace)}/persistence",
            {"bookkeeperEnsemble": ensemble, "bookkeeperWriteQuorum": write, "bookkeeperAckQuorum": ack,
             "managedLedgerMaxMarkDeleteRate": 5.0},
        )  # fmt: skip
        topic = self._cluster.topic("load")
        admin.create_topic(topic, PARTITIONS)
        # Before anything is published: where consumed ledgers are deleted at once, a late subscription would miss them.
        for stream in streams:
            for number in stream.partitions if stream.type != "reader" else ():
                path = admin.path_of(f"{topic}-partition-{number}")
                earliest = {"ledgerId": -1, "entryId": -1}
                admin.call("PUT", f"/admin/v2/{path}/subscription/{stream.name}", earliest)
        return topic

    def _admin(self) -> AdminClient:
        return AdminClient(self._cluster.admin_urls)

    def _faults(self, plan: Round, topic: str, ledger: Ledger, clients: Sequence[ClientProcess]) -> None:
        nemesis = Nemesis(self._cluster, topic, plan.faults, self._remark)
        began = monotonic()
        nemesis.start()
        try:
            while monotonic() - began < plan.seconds or nemesis.is_alive():
                self._look(ledger, clients)
                sleep(_LOOK_S)
        finally:
            nemesis.stop()
        if nemesis.failure is not None:
            raise SoakFailed(f"the nemesis could not go on: {nemesis.failure!r}")
        try:
            self._cluster.make_whole(WHOLE_TIMEOUT_S)
        except ServerFailed as error:
            raise SoakFailed(f"faults have ended, and {error}") from None
        self._remark("  faults have ended, every server is there")

    def _look(self, ledger: Ledger, clients: Sequence[ClientProcess]) -> None:
        ledger.look()
        for key, size in self._cluster.resident_bytes().items():
            self._highest[key] = max(self._highest.get(key, 0), size)
        for client in clients:
            if ended := client.check():
                raise SoakFailed(ended)

    def _waited(
        self, is_done: Callable[[], bool], ledger: Ledger, clients: Sequence[ClientProcess], left: Callable[[], int]
    ) -> bool:
        """Whether *is_done* became true; False if there was no progress for STALL_S."""
        smallest, since = left(), monotonic()
        while not is_done():
            if monotonic() - since > STALL_S:
                for client in clients:
                    client.show_threads()
                return False
            sleep(_LOOK_S)
            self._look(ledger, clients)
            if left() < smallest:
                smallest, since = left(), monotonic()
        return True

    # ------------------------------------------------------------------------------ the reckoning

    def _drain(self, topic: str, spec: dict[str, Any], streams: Sequence[Stream], ledger: Ledger) -> None:
        """New consumers take what is left; then each subscription's backlog is 0, or that is a problem."""
        durable = [stream for stream in streams if stream.type != "reader"]
        client = ClientProcess(self._commands["python"], "drain", {**spec, "mode": "drain"}, durable)
        client.tell("finish")
        left: dict[str, int] = {}

        def count() -> int:
            left.clear()
            left.update(self._backlogs(topic, durable))
            return sum(left.values())

        try:
            if not self._waited(lambda: count() == 0, ledger, [client], lambda: sum(left.values()) + ledger.wanting):
                told = ", ".join(f"{name}: {entries}" for name, entries in left.items())
                ledger.problems.tell(
                    f"entries that new consumers have not taken in {STALL_S:.0f} s, connected and acknowledging: {told}"
                )
        finally:
            client.end()
        ledger.look()

    def _backlogs(self, topic: str, streams: Sequence[Stream]) -> dict[str, int]:
        """Entries that a subscription still has to take, where there are some. A partition that cannot say counts 1."""
        admin, found = self._admin(), {}
        for number in range(PARTITIONS):
            try:
                subscriptions = admin.stats(f"{topic}-partition-{number}")["subscriptions"]
            except AdminError as error:
                found[f"partition {number}: {error}"] = 1
                continue
            for stream in streams:
                if number in stream.partitions:
                    left = int(subscriptions.get(stream.name, {}).get("msgBacklog", 0))
                    if left:
                        found[f"{stream.name}, partition {number}"] = left
        return found

    def _judge(self, place: Path, topic: str, spec: dict[str, Any], plan: Round, ledger: Ledger, stuck: str) -> None:
        """Raises SoakFailed with all that was found."""
        problems = ledger.problems
        places: dict[int, dict[int, Place]] = {}
        if not plan.trims:
            for partition, stored in self._audit(place, spec, "audit").items():
                before = problems.count
                places[partition] = check_stored(partition, stored, ledger.published[partition], problems)
                if problems.count > before:
                    again = dict(self._audit(place, spec, "second-audit", partition)[partition])
                    lost = ledger.published[partition].receipts.keys() - places[partition].keys()
                    problems.tell(f"  a second reader finds {len(lost & again.keys())} of the {len(lost)} missing")
        if stuck:
            problems.tell(f"nothing went on for {STALL_S:.0f} s while consumers were connected and waited:\n{stuck}")
        sent = ledger.sent
        for book in ledger.given.values():
            for partition, numbers in book.missing(sent).items():
                where = places.get(partition, ledger.published[partition].receipts)
                here = [where[number] for number in numbers if number in where]
                problems.tell(
                    f"{book.name}, partition {partition}: {len(numbers)} of {sent[partition]} were never given: "
                    f"{runs(iter(numbers))}; {len(here)} of them are stored"
                    + (f", from {here[0]} to {here[-1]}" if here else "")
                )
        if problems.count:
            self._keep_stats(place, topic, "end")
            more = problems.count - len(problems.texts)
            raise SoakFailed("\n".join([*problems.texts, *([f"and {more} more"] if more else [])]))

    def _keep_stats(self, place: Path, topic: str, when: str) -> None:
        """Save the brokers' statistics of ledgers and cursors beside the events."""
        admin = self._admin()
        for number in range(PARTITIONS):
            try:
                path = f"/admin/v2/{admin.path_of(f'{topic}-partition-{number}')}"
                told = {kind: admin.call("GET", f"{path}/{kind}") for kind in ("stats", "internalStats")}
            except AdminError as error:
                told = {"error": str(error)}
            (place / f"partition-{number}-{when}.json").write_text(json.dumps(told, indent=1))

    def _audit(
        self, place: Path, spec: dict[str, Any], name: str, only: int | None = None
    ) -> dict[int, list[tuple[int, Place]]]:
        """Read everything that is stored with new readers."""
        partitions = list(range(PARTITIONS)) if only is None else [only]
        client = ClientProcess(
            self._commands["python"], name, {**spec, "mode": "audit", "name": name, "partitions": partitions}, []
        )
        deadline = monotonic() + STALL_S + WHOLE_TIMEOUT_S
        while client.process.poll() is None and monotonic() < deadline:
            sleep(_LOOK_S)
        code = client.process.poll()
        client.end()
        if code != 0:
            raise SoakFailed(f"a fresh reader ended with {code}: {client.log.read_text(errors='replace')[-2000:]}")
        found: dict[int, list[tuple[int, Place]]] = {}
        for number in partitions:
            values = [line.split() for line in Tail(place / f"{name}-{number}.events").lines() if line[0] == "G"]
            found[number] = [(int(each[2]), Place(*map(int, each[3:6]))) for each in values]
        return found

    def _clean_up(self, place: Path, topic: str) -> None:
        self._admin().delete_topic(topic, force=True)
        for path in place.iterdir():
            path.unlink()
        place.rmdir()
        self._cluster.remove_old_logs()
        self.samples.append(self._cluster.resident_bytes())

    def memory_problems(self) -> list[str]:
        return memory.problems(self.samples, self._highest)


def soak(
    directory: Path, *, minutes: float, seed: str, languages: Sequence[str], remark: Remark, first_round: int = 1
) -> None:
    """Rounds until *minutes* are over, one at least. Raises SoakFailed, ServerFailed."""
    lock = threading.Lock()

    def say(text: str) -> None:
        with lock:
            remark(text)

    began = monotonic()
    commands = {}
    for language in languages:
        try:
            commands[language] = build(language, directory)
        except NotAvailable as error:
            say(f"without {language}: {error}")
    with soak_cluster(directory, say) as cluster:
        if cluster.why_no_small_disk:
            say(f"without the fault `fill the disk`: {cluster.why_no_small_disk}")
        say(f"seed {seed}, {minutes:g} minutes, clients: {', '.join(commands)}; in {directory}")
        made = Soak(cluster, directory, seed, commands, say)
        number = first_round
        while number == first_round or monotonic() - began < minutes * 60:
            made.round(number, min(ROUND_S, minutes * 60 * 0.6))
            number += 1
        for line in memory.table(made.samples):
            say(f"  MiB after each round: {line}")
        if found := made.memory_problems():
            raise SoakFailed("\n".join(found))
        say(
            f"nothing found: {number - first_round} rounds, {made.faults} faults, {made.messages} messages, "
            f"{made.deliveries} deliveries, {(monotonic() - began) / 60:.1f} minutes"
        )
