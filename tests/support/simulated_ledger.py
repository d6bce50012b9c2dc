"""A world around the pure machines of the ledger client: bookies, a network, one metadata record, one seed.

Fault model: any message may be late, repeated, or lost (its author then sees a time-out, whether or not the bookie
acted); bookies may be unreachable for a while, but lose nothing while the ledger is open; up to Qa - 1 of them never
come back; metadata operations take effect at once or late, and their answers arrive later still. Once the ledger is
closed, any bookie may come back with empty disks behind a new socket: it gets its copies again, and knows of no fence.
Each `step` is one event; after each one the invariants are checked.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from magnetar_core.bookkeeper.client.deciding.belief import Belief
from magnetar_core.bookkeeper.client.deciding.quorum import Quorum
from magnetar_core.bookkeeper.client.deciding.recovery import (
    Absent,
    Answer,
    FencingRound,
    Found,
    LastConfirmed,
    RecoveryRead,
    Undecidable,
)
from magnetar_core.bookkeeper.client.deciding.writer import (
    Acknowledge,
    ChangeEnsemble,
    Effect,
    Failed,
    Held,
    LedgerWriter,
    PendingAdd,
    judge_conflict,
)
from magnetar_core.bookkeeper.client.errors import (
    BookieUnavailable,
    BookKeeperError,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    OperationTimeout,
)
from magnetar_core.bookkeeper.client.placing.ensembles import choose_ensemble, choose_replacements
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState, Segment
from magnetar_core.bookkeeper.wire.entry import DigestType, EntryCodec, StoredEntry, master_key

LEDGER = 1
CODEC = EntryCodec(DigestType.DUMMY, b"")
KEY = master_key(b"")


@dataclass
class Bookie:
    name: str
    entries: dict[int, StoredEntry] = field(default_factory=dict)
    fenced: bool = False
    reachable: bool = True
    socket: int = 1
    """Counts what clients are connected to."""


@dataclass
class Message:
    """A request on its way (add, fence, read), or its answer on its way back."""

    what: str
    bookie: str
    deliver: Callable[[], None]
    fail: Callable[[BookKeeperError], None]


class SimulatedLedger:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        ensemble_size = self.rng.randint(1, 5)
        write = self.rng.randint(1, ensemble_size)
        self.quorum = Quorum(ensemble_size, write, self.rng.randint(1, write))
        names = [f"b{i}" for i in range(ensemble_size + self.rng.randint(0, 3))]
        self.bookies = {name: Bookie(name) for name in names}
        self.network: list[Message] = []
        self.tasks: list[Callable[[], None]] = []
        """Steps of clients that wait for the metadata store: run in any order."""
        self.metadata = LedgerMetadata(
            ensemble_size=ensemble_size,
            write_quorum=write,
            ack_quorum=self.quorum.ack,
            digest_type=DigestType.DUMMY,
            segments=(Segment(0, choose_ensemble(names, ensemble_size, (), self.rng)),),
        )
        self.version = 0
        self.acknowledged = -1
        self.now_s = 0.0
        """Each step takes a second."""
        self.held = 0
        self.writer = Writer(self)
        self.recoveries: list[Recovery] = []
        self.seals = 0
        self.readmitted = 0
        self.left = 0
        self.read = 0
        self.disowned = 0

    # The metadata store

    def write_metadata(self, new: LedgerMetadata, version: int) -> bool:
        """Compare and set; checks what is allowed (I18 to I20, I2)."""
        if version != self.version:
            return False
        old = self.metadata
        assert not new.problems()
        match old.state, new.state:
            case LedgerState.OPEN, LedgerState.OPEN:
                assert new.segments[:-1] in (old.segments, old.segments[:-1])
                assert new.last_segment.first_entry_id >= old.last_segment.first_entry_id
            case (LedgerState.OPEN, LedgerState.IN_RECOVERY) | (LedgerState.IN_RECOVERY, LedgerState.IN_RECOVERY):
                assert new.segments == old.segments
            case (LedgerState.OPEN | LedgerState.IN_RECOVERY, LedgerState.CLOSED):
                self.seals += 1
                assert new.last_entry_id >= self.acknowledged, "acknowledged entries were cut off"
            case _:
                raise AssertionError(f"{old.state} to {new.state}")
        self.metadata = new
        self.version += 1
        return True

    # The network

    def send(
        self, what: str, name: str, act: Callable[[Bookie], Answer | None], told: Callable[[Answer | None], None]
    ) -> None:
        """*act* at the bookie, then *told* at the client; None is the good answer to an add."""

        def fail(error: BookKeeperError) -> None:
            told(error)

        def deliver() -> None:
            bookie = self.bookies[name]
            if not bookie.reachable:
                fail(BookieUnavailable(name))
                return
            answer = act(bookie)
            self.network.append(Message(f"{what} answer", name, lambda: told(answer), fail))

        self.network.append(Message(what, name, deliver, fail))

    def step(self) -> None:
        rng = self.rng
        self.now_s += 1
        kinds = ["append", "deliver", "drop", "task", "reach", "recover", "repeat", "look", "leave", "exchange"]
        match rng.choices(kinds, [20, 60, 3, 12, 1, 0.7, 3, 3, 1, 6 if self.metadata.is_closed else 0])[0]:
            case "append":
                self.writer.append(rng.randint(1, 3))
            case "deliver" if self.network:
                self.network.pop(rng.randrange(len(self.network))).deliver()
            case "repeat" if self.network:
                # The network hands the same bytes over twice; what the client was told once it ignores.
                self.network[rng.randrange(len(self.network))].deliver()
            case "drop" if self.network:
                self.network.pop(rng.randrange(len(self.network))).fail(OperationTimeout("lost"))
            case "task" if self.tasks:
                self.tasks.pop(rng.randrange(len(self.tasks)))()
            case "reach":
                bookie = rng.choice(list(self.bookies.values()))
                bookie.reachable = not bookie.reachable
            case "look":
                self.writer.look_at_left_out()
            case "leave":
                self.writer.leave(rng.choice(list(self.bookies)))
            case "recover" if len(self.recoveries) < 3:
                self.recoveries.append(Recovery(self))
            case "exchange":
                self.exchange(rng.choice(list(self.bookies.values())))
        self.check()

    def exchange(self, bookie: Bookie) -> None:
        """Its disks are empty; auto-recovery brings back what the closed ledger has."""
        broken = [message for message in self.network if message.bookie == bookie.name]
        self.network = [message for message in self.network if message.bookie != bookie.name]
        bookie.entries = {at: entry for at, entry in bookie.entries.items() if at <= (self.metadata.last_entry_id or 0)}
        bookie.fenced, bookie.reachable = False, True
        bookie.socket += 1
        for message in broken:
            message.fail(BookieUnavailable(bookie.name))

    def pass_on(self, what: str, *names: str) -> None:
        """Deliver the messages of this kind to (or from) these bookies. For tests with a fixed order of events."""
        for name in names:
            (message,) = (m for m in self.network if (m.what, m.bookie) == (what, name))
            self.network.remove(message)
            message.deliver()

    def settle(self) -> None:
        """End the faults: everything is delivered, and one more recovery succeeds.

        At first with some bookies gone for good, which is enough unless too few are left to write back to.
        """
        dead = self.rng.sample(list(self.bookies), self.rng.randint(0, self.quorum.ack - 1))
        for attempt in range(20):
            for bookie in self.bookies.values():
                bookie.reachable = bookie.name not in dead or attempt > 3
            self.drain()
            if self.metadata.is_closed:
                break
            self.recoveries.append(Recovery(self))
        self.drain()
        assert self.metadata.is_closed, "the ledger was not closed"
        assert self.seals == 1

    def drain(self) -> None:
        for _ in range(100_000):
            if self.network:
                self.network.pop(0).deliver()
            elif self.tasks:
                self.tasks.pop(0)()
            else:
                return
            self.check()
        raise AssertionError("it does not come to rest")

    def check(self) -> None:
        self.writer.machine.check_invariants()
        if self.metadata.is_closed:
            assert self.metadata.last_entry_id >= self.acknowledged

    def holders(self, entry_id: int) -> int:
        """Bookies of the write set, by the stored metadata, that have the entry."""
        ensemble = self.metadata.ensemble_for(entry_id)
        return sum(entry_id in self.bookies[ensemble[index]].entries for index in self.quorum.write_set(entry_id))

    def store(self, bookie: Bookie, add: PendingAdd, payload: bytes, lac: int, recovery: bool) -> Answer | None:
        if bookie.fenced and not recovery:
            return LedgerFenced(bookie.name)
        entry = StoredEntry(LEDGER, add.entry_id, lac, add.length, memoryview(payload))
        found = bookie.entries.get(add.entry_id)
        assert found is None or (bytes(found.payload), found.length) == (payload, add.length), "two payloads, one id"
        bookie.entries[add.entry_id] = entry
        return None


class _Adder:
    """The part that writer and recovery share: it drives a LedgerWriter."""

    def __init__(self, world: SimulatedLedger, machine: LedgerWriter, recovery: bool) -> None:
        self.world = world
        self.machine = machine
        self.recovery = recovery

    def send(self, index: int, add: PendingAdd) -> None:
        world, machine = self.world, self.machine
        bookie_name, lac = machine.ensemble[index], machine.last_add_confirmed
        payload = bytes(add.payload)
        answered = False

        def told(answer: Answer | None) -> None:
            nonlocal answered
            if answered:
                return
            answered = True
            if answer is None:
                self.is_answered(index, bookie_name)
                self.do(machine.on_added(index, bookie_name, [add.entry_id]))
            else:
                assert isinstance(answer, BookKeeperError)
                self.do(machine.on_failed(index, bookie_name, [add.entry_id], answer))

        world.send("add", bookie_name, lambda bookie: world.store(bookie, add, payload, lac, self.recovery), told)

    def append_payloads(self, payloads: list[bytes]) -> None:
        machine = self.machine
        run = machine.add(payloads)
        effect = machine.start_delayed_change()
        for add in run:
            for index in machine.quorum.write_set(add.entry_id):
                if index not in machine.skipped:
                    self.send(index, add)
        self.do(effect)

    def do(self, effect: Effect | None) -> None:
        match effect:
            case Acknowledge(up_to):
                self.on_acknowledged(up_to)
            case ChangeEnsemble(failed):
                self.world.tasks.append(lambda: self.change(dict(failed)))
            case Failed(error):
                self.on_failed(error)
            case Held():
                self.world.held += 1

    def change(self, failed: dict[int, str]) -> None:
        if not self.machine.is_open():
            return
        world = self.world
        # A client does not know for certain which bookies are reachable.
        unreachable = [b.name for b in world.bookies.values() if not b.reachable and world.rng.random() < 0.5]
        replacements = choose_replacements(
            list(world.bookies), self.machine.ensemble, failed, unreachable, (), world.rng
        )
        if replacements:
            self.publish(replacements)
        else:
            self.changed({})

    def changed(self, replacements: dict[int, str]) -> None:
        if not self.machine.is_open():
            return
        former = list(self.machine.ensemble)
        changed = self.machine.on_ensemble_changed(replacements)
        for index, adds in changed.resend.items():
            self.is_replaced(index, former[index])
            for add in adds:
                self.send(index, add)
        self.do(changed.effect)
        self.do(self.machine.tick(self.world.now_s))

    def is_answered(self, index: int, bookie_name: str) -> None:
        """An add is confirmed."""

    def is_replaced(self, index: int, former: str) -> None:
        """Another bookie is at this position."""

    def publish(self, replacements: dict[int, str]) -> None:
        raise NotImplementedError

    def on_acknowledged(self, up_to: int) -> None:
        raise NotImplementedError

    def on_failed(self, error: BookKeeperError) -> None:
        raise NotImplementedError


class Writer(_Adder):
    def __init__(self, world: SimulatedLedger) -> None:
        self.known = world.metadata
        self.version = world.version
        ensemble, hold_s = world.metadata.last_segment.ensemble, world.rng.choice((0.0, 20.0))
        machine = LedgerWriter(LEDGER, world.quorum, ensemble, CODEC, KEY, hold_s=hold_s)
        super().__init__(world, machine, False)
        self.belief: Belief[tuple[int, str]] = Belief(self.sockets())
        self.is_reading = False

    def sockets(self) -> Mapping[tuple[int, str], int]:
        return {(at, name): self.world.bookies[name].socket for at, name in enumerate(self.machine.ensemble)}

    def is_answered(self, index: int, bookie_name: str) -> None:
        socket = self.world.bookies[bookie_name].socket
        if self.machine.is_open() and self.belief.on_answer((index, bookie_name), socket):
            self.machine.doubt()
            if not self.is_reading:
                self.is_reading = True
                self.world.tasks.append(self.begin_reading)

    def is_replaced(self, index: int, former: str) -> None:
        self.belief.replace((index, former), (index, self.machine.ensemble[index]))

    def begin_reading(self) -> None:
        sockets = self.sockets()
        self.world.tasks.append(lambda: self.read(sockets))

    def read(self, sockets: Mapping[tuple[int, str], int]) -> None:
        """The metadata store answers."""
        world, machine = self.world, self.machine
        if not machine.is_open():
            return
        if machine.is_changing:  # one after the other
            world.tasks.append(lambda: self.read(sockets))
            return
        problem: BookKeeperError | None = None
        try:
            judge_conflict(self.known, world.metadata, LEDGER)
        except BookKeeperError as error:
            problem = error

        def answer() -> None:
            if not machine.is_open():
                return
            if problem is not None:
                world.disowned += 1
                machine.fail(problem)
                return
            world.read += 1
            self.belief.on_read(sockets)
            if self.belief.is_doubted:
                self.begin_reading()
                return
            self.is_reading = False
            self.do(machine.trust())

        world.tasks.append(answer)

    def append(self, count: int) -> None:
        if self.machine.is_open() and self.machine.pending_count < 30:
            first = self.machine.last_add_pushed + 1
            self.append_payloads([b"entry %d" % (first + i) for i in range(count)])

    def publish(self, replacements: dict[int, str]) -> None:
        world = self.world
        first, ensemble = self.machine.new_segment(replacements)
        wanted = self.known.with_ensemble(first, ensemble)

        def answer() -> None:
            if done:
                self.known, self.version = wanted, self.version + 1
                self.changed(replacements)
                return
            try:
                judge_conflict(self.known, world.metadata, LEDGER)
            except BookKeeperError as error:
                self.machine.fail(error)
            else:
                raise AssertionError("a conflict that nobody caused")

        done = world.write_metadata(wanted, self.version)
        world.tasks.append(answer)

    def look_at_left_out(self) -> None:
        """Update the reachable bookies, as the shell does when their register changes, and from time to time."""
        world = self.world
        usable = {name for name, bookie in world.bookies.items() if bookie.reachable}
        # A placement rule may keep every other bookie out.
        changed = self.machine.fill(usable, lambda left_out: left_out if world.rng.random() < 0.5 else {})
        world.readmitted += len(changed.resend)
        for index, adds in changed.resend.items():
            for add in adds:
                self.send(index, add)
        self.do(changed.effect)
        if self.machine.due_s is not None and world.now_s >= self.machine.due_s:
            self.do(self.machine.tick(world.now_s))

    def leave(self, name: str) -> None:
        """That bookie is about to stop, and says so."""
        machine, world = self.machine, self.world
        leaving = {at: one for at, one in enumerate(machine.ensemble) if one == name and at not in machine.left_out}
        replacements = choose_replacements(list(world.bookies), machine.ensemble, leaving, (), (), world.rng)
        effect = machine.leave(replacements)
        if effect is not None:
            world.left += 1
            world.tasks.append(lambda: self.publish(replacements) if machine.is_open() else None)

    def on_acknowledged(self, up_to: int) -> None:
        world = self.world
        assert up_to > world.acknowledged
        for entry_id in range(world.acknowledged + 1, up_to + 1):
            assert world.holders(entry_id) >= world.quorum.ack, f"entry {entry_id} is not on its ack quorum"
        world.acknowledged = up_to

    def on_failed(self, error: BookKeeperError) -> None:
        assert not self.machine.is_open()


class Recovery:
    """One run of recovery; ends in `outcome`."""

    def __init__(self, world: SimulatedLedger) -> None:
        self.world = world
        self.outcome: LedgerMetadata | BookKeeperError | None = None
        self.window = world.rng.randint(1, 4)
        world.tasks.append(self.begin)

    def begin(self) -> None:
        world = self.world
        if world.metadata.is_closed:
            self.outcome = world.metadata
            return
        if world.metadata.state is LedgerState.OPEN:
            assert world.write_metadata(world.metadata.in_recovery(), world.version)
        self.snapshot, self.version = world.metadata, world.version
        segment = self.snapshot.last_segment
        self.ensemble = segment.ensemble
        round_ = FencingRound(world.quorum, segment.first_entry_id)
        for index, name in enumerate(self.ensemble):
            world.send("fence", name, self.fence, self.once(self.telling(round_, index)))

    def telling(self, round_: FencingRound, index: int) -> Callable[[Answer], None]:
        return lambda answer: self.on_fenced(round_, index, answer)

    def once(self, told: Callable[[Answer], None]) -> Callable[[Answer | None], None]:
        answered = False

        def tell(answer: Answer | None) -> None:
            nonlocal answered
            assert answer is not None
            if not answered:
                answered = True
                told(answer)

        return tell

    def fence(self, bookie: Bookie) -> Answer:
        bookie.fenced = True
        if not bookie.entries:
            return NoSuchLedger(bookie.name)
        return bookie.entries[max(bookie.entries)]

    def on_fenced(self, round_: FencingRound, index: int, answer: Answer) -> None:
        if self.outcome is not None or hasattr(self, "adder"):
            return
        match round_.on_answer(index, answer):
            case Undecidable(error):
                assert isinstance(error, BookKeeperError)
                self.outcome = error
            case LastConfirmed(last_add_confirmed):
                world = self.world
                for first in range(world.quorum.ensemble_size):
                    unfenced = sum(not world.bookies[self.ensemble[i]].fenced for i in world.quorum.write_set(first))
                    # Once the ledger is closed, a bookie may have lost its fence again (fault model).
                    assert unfenced < world.quorum.ack or world.metadata.is_closed, "recovery reads before coverage"
                machine = LedgerWriter(
                    LEDGER, world.quorum, self.ensemble, CODEC, KEY,
                    last_add_confirmed=last_add_confirmed, recovery=True,
                )  # fmt: skip
                self.adder = RecoveryAdder(world, machine, self)
                self.next_to_read = last_add_confirmed + 1
                self.next_to_add = last_add_confirmed + 1
                self.found: dict[int, StoredEntry | None] = {}
                self.end: int | None = None
                for _ in range(self.window):
                    self.read_next()

    def read_next(self) -> None:
        world = self.world
        entry_id = self.next_to_read
        self.next_to_read += 1
        read = RecoveryRead(world.quorum, entry_id)

        def look(bookie: Bookie) -> Answer:
            bookie.fenced = True
            return bookie.entries.get(entry_id) or NoSuchEntry(bookie.name)

        def on_answer(answer: Answer) -> None:
            if self.outcome is not None or entry_id in self.found or self.end is not None:
                return
            match read.on_answer(answer):
                case Undecidable(error):
                    assert isinstance(error, BookKeeperError)
                    self.outcome = error
                case Found(entry):
                    self.found[entry_id] = entry
                    self.advance()
                case Absent():
                    self.found[entry_id] = None
                    self.advance()

        for index in world.quorum.write_set(entry_id):
            world.send("read", self.ensemble[index], look, self.once(on_answer))

    def advance(self) -> None:
        machine = self.adder.machine
        while self.next_to_add in self.found and self.outcome is None and self.end is None:
            entry = self.found[self.next_to_add]
            if entry is None:
                self.end = self.next_to_add - 1
                break
            if not machine.is_open():
                return
            machine.set_length(entry.length - len(entry.payload))
            self.adder.append_payloads([bytes(entry.payload)])
            assert machine.last_add_pushed == self.next_to_add
            assert machine.length == entry.length
            self.next_to_add += 1
            self.read_next()
        self.maybe_seal()

    def maybe_seal(self) -> None:
        if self.end is not None and self.outcome is None and self.adder.machine.last_add_confirmed == self.end:
            end, self.end = self.end, None
            self.next_to_add = -1
            self.world.tasks.append(lambda: self.seal(end))

    def seal(self, last: int) -> None:
        world = self.world
        if world.version == self.version:
            closed = self.snapshot.closed(last, self.adder.machine.confirmed_length, self.adder.ensembles)
            assert world.write_metadata(closed, self.version)
        elif world.metadata.is_closed:
            assert world.metadata.last_entry_id >= world.acknowledged
        self.outcome = world.metadata


class RecoveryAdder(_Adder):
    def __init__(self, world: SimulatedLedger, machine: LedgerWriter, recovery: Recovery) -> None:
        super().__init__(world, machine, True)
        self.owner = recovery
        self.ensembles: dict[int, tuple[str, ...]] = {}

    def publish(self, replacements: dict[int, str]) -> None:
        first, ensemble = self.machine.new_segment(replacements)
        self.ensembles[first] = ensemble
        self.changed(replacements)

    def on_acknowledged(self, up_to: int) -> None:
        if hasattr(self.owner, "end"):
            self.owner.maybe_seal()

    def on_failed(self, error: BookKeeperError) -> None:
        if self.owner.outcome is None:
            self.owner.outcome = error
