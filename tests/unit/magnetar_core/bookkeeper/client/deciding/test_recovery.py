"""The state machines of recovery and reading, and the choice of bookies, driven by hand."""

import random
from itertools import product

import pytest

from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.deciding.quorum import Quorum
from magnetar_core.bookkeeper.client.deciding.reader import FirstError, HeldCount, ReplicaWalk, open_batch, read_order
from magnetar_core.bookkeeper.client.deciding.recovery import (
    Absent,
    Answer,
    FencingRound,
    Found,
    LastConfirmed,
    RecoveryRead,
    Undecidable,
)
from magnetar_core.bookkeeper.client.errors import (
    BookieIOError,
    BookieUnavailable,
    BookKeeperError,
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    OperationTimeout,
    RemoteError,
    Unauthorized,
    UnknownLedgerState,
    error_of,
)
from magnetar_core.bookkeeper.client.placing.ensembles import choose_ensemble, choose_replacements
from magnetar_core.bookkeeper.wire.codec_v2 import V2Error
from magnetar_core.bookkeeper.wire.entry import DigestType, EntryCodec, StoredEntry
from magnetar_core.runtime.config import load
from magnetar_core.runtime.types import ConfigurationError
from tests.support.simulated_ledger import Recovery, SimulatedLedger

NO_ENTRY = NoSuchEntry("")
NO_LEDGER = NoSuchLedger("")
UNKNOWN: list[BookKeeperError | DigestMismatch] = [
    OperationTimeout(""),
    BookieUnavailable(""),
    BookieIOError(""),
    UnknownLedgerState(""),
    DigestMismatch(""),
]


def entry(entry_id: int, lac: int, length: int = 0) -> StoredEntry:
    return StoredEntry(1, entry_id, lac, length, memoryview(b""))


def test_fencing_takes_the_greatest_lac_and_never_less_than_the_segment_tells() -> None:
    round_ = FencingRound(Quorum(3, 3, 2), 0)
    assert round_.on_answer(0, entry(5, 3, 60)) is None
    assert round_.on_answer(1, entry(4, 4, 50)) == LastConfirmed(4, 50)
    round_ = FencingRound(Quorum(3, 3, 2), 2000)
    round_.on_answer(0, NO_LEDGER)
    assert round_.on_answer(1, NO_ENTRY) == LastConfirmed(1999, 0)  # R-L2


@pytest.mark.parametrize("unknown", UNKNOWN[:-1])
def test_fencing_counts_only_bookies_that_were_heard(unknown: BookKeeperError) -> None:
    round_ = FencingRound(Quorum(3, 3, 2), 0)
    assert round_.on_answer(0, NO_LEDGER) is None
    assert round_.on_answer(1, unknown) is None
    assert round_.on_answer(2, unknown) == Undecidable(unknown)


def test_damage_is_heard_but_needs_a_valid_answer_beside_it() -> None:
    round_ = FencingRound(Quorum(2, 2, 2), 0)
    assert round_.on_answer(0, DigestMismatch("")) is None
    assert round_.on_answer(1, entry(1, 0)) == LastConfirmed(0, 0)


def test_a_wrong_password_ends_fencing_at_once() -> None:
    error = Unauthorized("")
    assert FencingRound(Quorum(3, 3, 2), 0).on_answer(2, error) == Undecidable(error)


def test_one_positive_answer_is_enough_and_absence_needs_more() -> None:
    read = RecoveryRead(Quorum(3, 3, 2), 7)
    assert read.on_answer(NO_ENTRY) is None
    assert read.on_answer(entry(7, 6)) == Found(entry(7, 6))
    read = RecoveryRead(Quorum(3, 3, 2), 7)
    assert read.on_answer(NO_ENTRY) is None
    assert read.on_answer(NO_LEDGER) == Absent()


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_silence_and_errors_are_not_absence(unknown: BookKeeperError) -> None:
    read = RecoveryRead(Quorum(3, 3, 2), 7)
    assert read.on_answer(unknown) is None
    assert read.on_answer(NO_ENTRY) is None
    assert read.on_answer(unknown) == Undecidable(unknown)


def test_a_recovery_read_that_fences_stops_the_late_add() -> None:
    """R-L1: the fence to the third bookie is lost; its "no" to the recovery read must bind it."""
    world = SimulatedLedger(0)
    while world.quorum.ensemble_size != 3 or world.quorum.write != 3 or world.quorum.ack != 2:
        world = SimulatedLedger(world.rng.randrange(1_000_000))
    b1, b2, b3 = world.metadata.last_segment.ensemble
    world.writer.append(1)
    world.pass_on("add", b2)
    recovery = Recovery(world)
    recovery.window = 1
    world.tasks.pop()()
    world.pass_on("fence", b1, b2)
    world.pass_on("fence answer", b1, b2)
    assert not world.bookies[b3].fenced
    world.pass_on("read", b1, b3)
    world.pass_on("read answer", b1, b3)
    world.tasks.pop()()
    assert recovery.outcome == world.metadata
    assert world.metadata.last_entry_id == -1
    world.pass_on("add", b3)
    world.pass_on("add answer", b2, b3)
    assert not world.writer.machine.is_open()
    assert world.acknowledged == -1


def test_which_error_is_reported() -> None:
    def verdict(*errors: BookKeeperError) -> BookKeeperError | DigestMismatch | None:
        first = FirstError()
        for error in errors:
            first.add(error)
        return first.error

    broken, gone, timeout = BookieIOError("io"), BookieUnavailable("gone"), OperationTimeout("late")
    assert verdict(NO_ENTRY, broken) is broken
    assert verdict(broken, NO_ENTRY, timeout) is broken
    assert verdict(gone, NO_ENTRY) is gone
    assert verdict(gone, timeout) is timeout
    assert verdict(NO_LEDGER, NO_ENTRY) is NO_ENTRY


def test_replicas_are_asked_one_after_the_other() -> None:
    walk = ReplicaWalk([2, 0])
    assert walk.next() == 2
    speculated = [walk.may_speculate]
    walk.on_error(2, NO_ENTRY)
    speculated.append(walk.may_speculate)
    assert speculated == [True, False]
    assert walk.next() == 0
    assert walk.next() is None
    walk.on_error(0, BookieUnavailable(""))
    assert walk.is_over
    assert isinstance(walk.error, BookieUnavailable)


def test_healthy_bookies_are_asked_first() -> None:
    ranks = {"a": 1, "b": 0, "c": 0}
    quorum = Quorum(3, 2, 2)
    assert read_order(quorum, 0, ("a", "b", "c"), lambda b: 0) == [0, 1]
    assert read_order(quorum, 0, ("a", "b", "c"), ranks.__getitem__) == [1, 0]
    assert read_order(Quorum(3, 3, 2), 0, ("a", "b", "c"), ranks.__getitem__, start=2) == [2, 1, 0]


def test_a_batch_is_kept_up_to_the_first_damage() -> None:
    codec = EntryCodec(DigestType.CRC32C, b"")
    raw = [codec.head(1, i, -1, i + 1, b"x") + b"x" for i in range(3)]
    assert len(open_batch(codec, 1, 0, raw)) == 3
    assert len(open_batch(codec, 1, 0, [raw[0], raw[2]])) == 1
    assert len(open_batch(codec, 1, 0, [raw[0], raw[0], raw[2]])) == 1  # what follows a damage has no place
    with pytest.raises(DigestMismatch):
        open_batch(codec, 1, 0, [raw[1], raw[0]])
    with pytest.raises(RemoteError):
        open_batch(codec, 1, 0, [])


def test_held_on_an_ack_quorum() -> None:
    held, missing, silent = entry(7, -1), NoSuchEntry("no"), BookieUnavailable("away")

    def verdicts(quorum: Quorum, *answers: Answer) -> list[object]:
        count = HeldCount(quorum, is_certain=False)
        return [count.on_answer(answer) for answer in answers]

    assert verdicts(Quorum(3, 3, 2), held, missing, held) == [None, None, True]
    assert verdicts(Quorum(3, 3, 2), missing, missing) == [None, False]
    assert verdicts(Quorum(3, 3, 2), held, missing, missing) == [None, None, False], "two denied it"
    assert verdicts(Quorum(3, 3, 2), silent, missing, held) == [None, None, True], "the silent one may have it, too"
    assert verdicts(Quorum(2, 2, 2), held, silent) == [None, True]
    assert verdicts(Quorum(2, 2, 2), silent, missing) == [None, False]
    assert verdicts(Quorum(2, 2, 2), silent, silent) == [None, silent]
    assert verdicts(Quorum(3, 3, 2), missing, silent, silent) == [None, None, silent], "silence is no denial"


def test_an_entry_is_certain_when_so_many_bookies_hold_it_that_no_recovery_can_miss_it() -> None:
    """Slow twin: each recovery, whichever bookies answer it. Those that are silent now may deny the entry then."""
    silent = BookieUnavailable("away")
    answers: dict[str, Answer] = {"held": entry(7, -1), "missing": NoSuchEntry("no"), "silent": silent}
    for quorum in (Quorum(2, 2, 2), Quorum(3, 3, 2), Quorum(3, 3, 3), Quorum(5, 5, 3)):
        for kinds in product(answers, repeat=quorum.write):
            count = HeldCount(quorum, is_certain=True)
            verdicts = [count.on_answer(answers[kind]) for kind in kinds]
            verdict = next((each for each in verdicts if each is not None), None)
            is_found_always = quorum.write - kinds.count("held") < quorum.absence
            is_absent = kinds.count("missing") >= quorum.absence
            assert verdict is (True if is_found_always else False if is_absent else silent), (quorum, kinds)


def test_ensembles_avoid_quarantine_as_long_as_they_can() -> None:
    rng = random.Random(1)
    bookies = {f"b{i}" for i in range(5)}
    for _ in range(50):
        chosen = choose_ensemble(bookies, 3, {"b0", "b1"}, rng)
        assert set(chosen) == {"b2", "b3", "b4"}
        chosen = choose_ensemble(bookies, 4, {"b0", "b1"}, rng)
        assert {"b2", "b3", "b4"} < set(chosen)
    with pytest.raises(NotEnoughBookies):
        choose_ensemble(bookies, 6, set(), rng)


def test_replacements_are_new_and_may_be_partial() -> None:
    rng = random.Random(1)
    bookies = {f"b{i}" for i in range(5)}
    ensemble = ("b0", "b1", "b2")
    for _ in range(50):
        found = choose_replacements(bookies, ensemble, {0: "b0", 2: "b2"}, {"b4"}, (), rng)
        assert list(found.values()) == ["b3"]
        found = choose_replacements(bookies, ensemble, {0: "b0"}, (), {"b3"}, rng)
        assert found == {0: "b4"}
    assert choose_replacements(ensemble, ensemble, {0: "b0"}, (), (), rng) == {}


def test_every_error_code_has_its_class() -> None:
    for code in V2Error:
        if code is not V2Error.EOK:
            assert type(error_of(code, "x")) is not RemoteError
    assert type(error_of(999, "x")) is RemoteError
    assert isinstance(error_of(504, "x", version=3), type(error_of(104, "x")))


def test_racks_cannot_be_enforced_where_nobody_looks_at_them() -> None:
    with pytest.raises(ConfigurationError, match="nobody looks at racks"):
        load(
            ClientConfig,
            {
                "bookkeeperClientRackawarePolicyEnabled": "false",
                "bookkeeperClientEnforceMinNumRacksPerWriteQuorum": "true",
            },
        )
    config = load(ClientConfig, {"bookkeeperClientTimeoutInSeconds": "5"})
    assert config.timeout_s == 5
