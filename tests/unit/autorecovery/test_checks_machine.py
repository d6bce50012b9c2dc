"""`checks` in a cluster of drawn events: a writer, bookies that die, fall silent, lose entries, come back and are
drained, and repairs that do what the verdicts say.

The verdicts are compared with a slow definition over what every bookie really has; and nothing acknowledged that some
bookie still has is ever lost by what is done about them.
"""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from autorecovery.ledgers.checks import (
    Answer,
    Copy,
    Fragment,
    Verdict,
    ends,
    fragments,
    is_tail_at_risk,
    judge,
    lost_entries,
    names,
)
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, Segment
from magnetar_core.bookkeeper.wire.entry import DigestType

BOOKIES = tuple("abcdef")
SILENT = "it does not answer"


class Checked(RuleBasedStateMachine):
    """One ledger."""

    @initialize(ensemble=st.integers(1, 3), write=st.integers(1, 3), count=st.integers(0, 6))
    def begin(self, ensemble: int, write: int, count: int) -> None:
        write = min(ensemble, write)
        self.metadata = LedgerMetadata(
            ensemble_size=ensemble, write_quorum=write, ack_quorum=write, digest_type=DigestType.CRC32C,
            segments=(Segment(0, BOOKIES[:ensemble]),),
        )  # fmt: skip
        self.has: dict[str, set[int]] = {bookie: set() for bookie in BOOKIES}
        self.up = set(BOOKIES)
        self.silent: set[str] = set()
        self.draining: set[str] = set()
        self.last = -1
        self.gone_for_good: set[int] = set()
        """Entries whose last copy a disk lost."""
        self.write(count)

    # ---------------------------------------------------------------------------- the world

    @property
    def asked(self) -> set[str]:
        """Bookies that answer."""
        return self.up - self.silent

    @property
    def writable(self) -> list[str]:
        return [one for one in BOOKIES if one in self.asked and one not in self.draining]

    def choose(self, ensemble: Sequence[str], leaving: Sequence[str]) -> dict[str, str]:
        free = [one for one in self.writable if one not in ensemble]
        return dict(zip(leaving, free, strict=False))

    @precondition(lambda self: not self.metadata.is_closed)
    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        self.write(count)

    def write(self, count: int) -> None:
        """The writer replaces what takes no entries, then stores and has all copies acknowledged."""
        ensemble = self.metadata.last_segment.ensemble
        bad = [one for one in ensemble if one not in self.writable]
        new = self.choose(ensemble, bad)
        if len(new) < len(bad):
            return
        if bad:
            changed = tuple(new.get(one, one) for one in ensemble)
            self.metadata = self.metadata.with_ensemble(self.last + 1, changed)
            # What the former one had behind its first entry stays there; readers ask the new one.
        for _ in range(count):
            self.last += 1
            segment = self.metadata.segment_for(self.last)
            fragment = Fragment(segment.first_entry_id, self.last, segment.ensemble, self.metadata.write_quorum, False)
            for index in fragment.holders(self.last):
                self.has[segment.ensemble[index]].add(self.last)

    @precondition(lambda self: not self.metadata.is_closed)
    @rule()
    def close(self) -> None:
        self.metadata = self.metadata.closed(self.last, self.last + 1)

    @rule(bookie=st.sampled_from(BOOKIES))
    def die(self, bookie: str) -> None:
        self.up.discard(bookie)

    @rule(bookie=st.sampled_from(BOOKIES))
    def return_(self, bookie: str) -> None:
        self.up.add(bookie)
        self.silent.discard(bookie)

    @rule(bookie=st.sampled_from(BOOKIES))
    def fall_silent(self, bookie: str) -> None:
        self.silent.add(bookie)

    @precondition(lambda self: self.last >= 0)
    @rule(place=st.integers(0, 2), entry=st.integers(0, 1_000))
    def lose(self, place: int, entry: int) -> None:
        """A disk loses an entry that it should have."""
        entry_id = entry % (self.last + 1)
        ensemble = self.metadata.ensemble_for(entry_id)
        self.has[ensemble[(entry_id + place % self.metadata.write_quorum) % len(ensemble)]].discard(entry_id)
        if not self.is_somewhere(entry_id):
            self.gone_for_good.add(entry_id)

    def is_somewhere(self, entry_id: int) -> bool:
        """One of the bookies that should have it has it."""
        segment = self.metadata.segment_for(entry_id)
        fragment = Fragment(segment.first_entry_id, self.last, segment.ensemble, self.metadata.write_quorum, True)
        return any(entry_id in self.has[segment.ensemble[index]] for index in fragment.holders(entry_id))

    @rule(bookie=st.sampled_from(BOOKIES[:4]))
    def drain(self, bookie: str) -> None:
        self.draining.add(bookie)

    @rule(bookie=st.sampled_from(BOOKIES))
    def cancel(self, bookie: str) -> None:
        self.draining.discard(bookie)

    # ---------------------------------------------------------------------------- what is checked

    def look(self, fragment: Fragment, *, all_entries: bool) -> Verdict:
        answers: dict[int, list[Answer]] = {}
        for index, bookie in enumerate(fragment.ensemble):
            if bookie not in self.up:
                continue
            wanted = list(fragment.held(index)) if all_entries else ends(fragment, index)
            if bookie in self.silent:
                answers[index] = [SILENT for _ in wanted]
            else:
                answers[index] = [Copy.PRESENT if one in self.has[bookie] else Copy.MISSING for one in wanted]
        return judge(fragment, self.up, self.draining, answers)

    @rule()
    def repair(self) -> None:
        """One attempt at the whole ledger, as a worker does it: only fixed fragments, from whoever has the entries."""
        for fragment in fragments(self.metadata, self.last):
            if not fragment.is_fixed:
                continue
            verdict = self.look(fragment, all_entries=True)
            leaving = [*verdict.to_replace.values()]
            new = self.choose(fragment.ensemble, leaving)
            targets = {**verdict.incomplete, **{i: new[b] for i, b in verdict.to_replace.items() if b in new}}
            missing = {
                index: {one for one in fragment.held(index) if one not in self.has[bookie]}
                for index, bookie in enumerate(fragment.ensemble)
            }
            if lost_entries(fragment, missing):
                continue
            copied: dict[int, set[int]] = {}
            for index in targets:
                sources = self.asked & set(fragment.ensemble)
                found = {one for one in fragment.held(index) if any(one in self.has[source] for source in sources)}
                if found != set(fragment.held(index)):
                    break  # nobody who answers has them now
                copied[index] = found
            else:
                for index, found in copied.items():
                    self.has[targets[index]] |= found
                if any(index in verdict.to_replace for index in targets):
                    ensemble = list(fragment.ensemble)
                    for index, target in targets.items():
                        ensemble[index] = target
                    self.metadata = self.metadata.with_segment_replaced(fragment.first_entry_id, tuple(ensemble))

    @invariant()
    def verdicts_are_what_the_bookies_have(self) -> None:
        if not hasattr(self, "metadata"):
            return
        for fragment in fragments(self.metadata, self.last):
            verdict = self.look(fragment, all_entries=True)
            for index, bookie in enumerate(fragment.ensemble):
                lacks = any(one not in self.has[bookie] for one in fragment.held(index))
                assert (index in verdict.gone) == (bookie not in self.up)
                is_there = bookie in self.up
                assert (index in verdict.unwanted) == (is_there and bookie in self.draining)
                is_judged = is_there and bookie not in self.silent and bookie not in self.draining
                assert (index in verdict.incomplete) == (is_judged and lacks)
                assert (index in verdict.unknown) == (
                    is_there and bookie in self.silent and bool(ends(fragment, index))
                )
            quick = self.look(fragment, all_entries=False)
            assert quick.gone == verdict.gone
            assert quick.incomplete.keys() <= verdict.incomplete.keys(), "the ends are among all entries"

    @invariant()
    def fragments_cover_the_ledger_once(self) -> None:
        if not hasattr(self, "metadata"):
            return
        found = fragments(self.metadata, self.last)
        covered = [one for fragment in found for one in range(fragment.first_entry_id, fragment.last_entry_id + 1)]
        assert covered == list(range(self.last + 1))
        assert all(fragment.is_fixed for fragment in found[:-1])
        assert found[-1].is_fixed == self.metadata.is_closed
        named = {bookie for fragment in found for bookie in fragment.ensemble}
        assert names(self.metadata, BOOKIES) == named
        last = self.metadata.last_segment.ensemble
        at_risk = not self.metadata.is_closed and any(one not in self.writable for one in last)
        assert is_tail_at_risk(self.metadata, self.writable) == at_risk

    @invariant()
    def repairs_lose_nothing(self) -> None:
        if hasattr(self, "metadata"):
            assert all(self.is_somewhere(one) for one in range(self.last + 1) if one not in self.gone_for_good)

    @rule()
    def everything_is_mended_when_all_are_there(self) -> None:
        """With every bookie back and enough that take entries, two repairs give a closed ledger all its copies."""
        self.up, self.silent = set(BOOKIES), set()
        if len(self.draining) > 3 or not self.metadata.is_closed:
            return
        for _ in range(2):
            self.repair()
        for fragment in fragments(self.metadata, self.last):
            if not self.gone_for_good.isdisjoint(range(fragment.first_entry_id, fragment.last_entry_id + 1)):
                continue  # lost: its ledger stays on the list
            verdict = self.look(fragment, all_entries=True)
            assert not verdict.gone
            assert not verdict.incomplete
            assert not verdict.unwanted, "a drained bookie is left behind"


TestChecked = Checked.TestCase
TestChecked.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
