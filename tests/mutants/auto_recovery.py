"""Seeded bugs of auto-recovery."""

from typing import Final

from tests.mutants.catalogue import Mutant

_NODE: Final = ("tests/unit/autorecovery/test_node.py",)
_LANE: Final = ("tests/unit/bookie/serving/test_recovery_lane.py",)
_COPYING: Final = ("tests/unit/autorecovery/test_copying.py",)
_AUDITOR: Final = ("tests/unit/autorecovery/test_auditor.py",)
_PERIODIC: Final = ("tests/unit/autorecovery/test_periodic.py",)
_CATALOGUE: Final = ("tests/unit/autorecovery/test_catalogue.py",)
_CHECKS: Final = ("tests/unit/autorecovery/test_checks.py",)
_DRAINING: Final = ("tests/unit/autorecovery/test_draining.py",)
_MARKS: Final = ("tests/unit/magnetar_core/bookkeeper/metadata/test_marks.py",)
_SERVER: Final = ("tests/unit/autorecovery/admin/test_server.py",)
_CALLS: Final = ("tests/unit/autorecovery/admin/test_calls.py",)
_STATES: Final = ("tests/conformance/test_bookie_states.py",)
_CALLBACKS: Final = ("tests/unit/autorecovery/test_callbacks.py",)
_REGISTRY: Final = ("tests/conformance/test_callback_registry.py",)
_REPORTS: Final = ("tests/conformance/test_damage_reports.py",)

MUTANTS: Final = (
    # -- regions of bookies
    Mutant(
        "a lost copy is given to a region that makes its ledger less durable",
        "autorecovery/repair.py",
        "                avoided,\n                write_quorum=fragment.write_quorum,\n"
        "                ack_quorum=metadata.ack_quorum,\n",
        "                avoided,\n                write_quorum=fragment.write_quorum,\n",
        ("tests/unit/autorecovery/test_placement_check.py", "-k", "region"),
    ),
    # -- groups of bookies
    Mutant(
        "a lost copy is given to a bookie of another group",
        "autorecovery/repair.py",
        "                custom_metadata=metadata.custom_metadata,\n                rng=_rng_of(ledger_id, fragment),\n"
        "            )\n\n        draining",
        "                rng=_rng_of(ledger_id, fragment),\n            )\n\n        draining",
        ("tests/unit/autorecovery/test_placement_check.py", "-k", "groups"),
    ),
    Mutant(
        "a ledger is marked for a place in another group",
        "autorecovery/placement_check.py",
        " and await self._may_move(ledger_id, found):",
        ":",
        ("tests/unit/autorecovery/test_placement_check.py", "-k", "groups"),
    ),
    # -- fewer requests for a ledger
    Mutant(
        "a record that others have changed meanwhile counts as judged",
        "autorecovery/repair.py",
        "            return None if attempt else written\n",
        "            return written\n",
        (*_COPYING, "-k", "judged_anew"),
    ),
    Mutant(
        "new copies are not looked at after the record names them",
        "autorecovery/repair.py",
        "        return all(answer is Copy.PRESENT for answer in answers)\n",
        "        return True\n",
        (*_COPYING, "-k", "vanishes"),
    ),
    Mutant(
        "a mark goes with the lock whatever its version is",
        "magnetar_core/bookkeeper/metadata/marks.py",
        "await self._store.multi([Delete(path, version), Delete(directory), lock])",
        "await self._store.multi([Delete(path), Delete(directory), lock])",
        _MARKS,
    ),
    Mutant(
        "a segment behind the end of a ledger is told of by the check of its ends",
        "autorecovery/periodic.py",
        "if not is_trailing(metadata, one.fragment.first_entry_id)]",
        "]",
        ("tests/unit/autorecovery/test_schedules.py", "-k", "r_r15"),
    ),
    # -- beside clients
    Mutant(
        "copies take turns with nobody: they are not held while clients write",
        "bookie/serving/writes.py",
        "is_in_lane = server.recovery_lane.took(self._peer, self._copied_bytes, now)",
        "is_in_lane = False",
        _LANE,
    ),
    Mutant(
        "the connection of a client is held like one of copies",
        "bookie/serving/writes.py",
        "            self._is_client = True\n",
        "            pass\n",
        _LANE,
    ),
    Mutant(
        "the rest of copies has no longest time",
        "bookie/serving/recovery_lane.py",
        "min(REST_SHARE * took_s, REST_S_MAX)",
        "REST_SHARE * took_s",
        _LANE,
    ),
    Mutant(
        "only one connection of copies ever gets its turn",
        "bookie/serving/recovery_lane.py",
        "        if self._held:\n            # Whoever",
        "        if False:\n            # Whoever",
        _LANE,
    ),
    Mutant(
        "many ledgers are read ahead of their turns",
        "autorecovery/pace.py",
        "        while self._taken_bytes >= self._window_bytes:",
        "        while False:",
        ("tests/unit/autorecovery/test_pace.py", "-k", "readers_wait"),
    ),
    Mutant(
        "a copy is published without being read back",
        "autorecovery/copying.py",
        "        await self._read_back(bookie, held)\n",
        "",
        _COPYING,
    ),
    Mutant(
        "a fragment with lost entries is published",
        "autorecovery/repair.py",
        "        if lost:\n            away =",
        "        if lost and not new:\n            away =",
        (*_COPYING, *_NODE),
    ),
    Mutant(
        "a copy that a target lost meanwhile counts",
        "autorecovery/copying.py",
        "        if had and await self._has_still(bookie, had):\n",
        "        if had:\n",
        _COPYING,
    ),
    Mutant(
        "a fragment with a lost entry is copied again at each attempt",
        "autorecovery/repair.py",
        "            if attempt.lost and await copier.are_lost(attempt.probed()):\n",
        "            if False:\n",
        _COPYING,
    ),
    Mutant(
        "silence is taken for a loss",
        "autorecovery/repair.py",
        "return Copy.MISSING if is_missing(error) or isinstance(error, DigestMismatch) else str(error)",
        "return Copy.MISSING",
        _PERIODIC,
    ),
    Mutant(
        "a damaged copy counts as a copy",
        "autorecovery/repair.py",
        "return Copy.MISSING if is_missing(error) or isinstance(error, DigestMismatch) else str(error)",
        "return Copy.MISSING if is_missing(error) else Copy.PRESENT",
        (*_COPYING, *_PERIODIC),
    ),
    Mutant(
        "a silent source is taken for a loss",
        "autorecovery/copying.py",
        "if not is_missing(error) and not isinstance(error, DigestMismatch):",
        "if False:",
        _COPYING,
    ),
    Mutant(
        "a fragment of an open ledger is fixed before LAC is there",
        "autorecovery/checks.py",
        "last, is_fixed = following - 1, last_of_ledger >= following - 1",
        "last, is_fixed = following - 1, True",
        _CHECKS,
    ),
    Mutant(
        "the last fragment of an open ledger is copied",
        "autorecovery/checks.py",
        "last, is_fixed = max(last_of_ledger, segment.first_entry_id - 1), False",
        "last, is_fixed = max(last_of_ledger, segment.first_entry_id - 1), True",
        _CHECKS,
    ),
    Mutant(
        "an empty fragment names nobody",
        "autorecovery/checks.py",
        "        if bookie not in available:\n            gone[index] = bookie\n",
        "        if bookie not in available and not fragment.is_empty:\n            gone[index] = bookie\n",
        (*_CHECKS, *_NODE),
    ),
    Mutant(
        "an open ledger is recovered without waiting for its writer",
        "autorecovery/repair.py",
        "                if not may_recover:\n",
        "                if False:\n",
        _NODE,
    ),
    Mutant(
        "the grace period never ends",
        "autorecovery/worker.py",
        "return self._clock.monotonic() >= waiting.grace_ends_s",
        "return False",
        _NODE,
    ),
    Mutant(
        "an open ledger is recovered at the second look",
        "autorecovery/worker.py",
        "return self._clock.monotonic() >= waiting.grace_ends_s",
        "return True",
        _NODE,
    ),
    Mutant(
        "an open ledger is not looked at within its grace period",
        "autorecovery/worker.py",
        "            due_s = min(due_s, grace_ends_s)\n",
        "            due_s = grace_ends_s\n",
        _NODE,
    ),
    Mutant(
        "a mark that was renewed is taken down",
        "magnetar_core/bookkeeper/metadata/marks.py",
        "            await self._store.delete(path, version)\n        except VersionConflict:",
        "            await self._store.delete(path)\n        except VersionConflict:",
        _MARKS,
    ),
    Mutant(
        "somebody else's lock is given back",
        "magnetar_core/bookkeeper/metadata/marks.py",
        "if node is not None and node.own:\n            with",
        "if node is not None:\n            with",
        _MARKS,
    ),
    Mutant(
        "a lock stays when a repair ends",
        "autorecovery/worker.py",
        "        finally:\n            await self._unlock(ledger_id)\n",
        "        finally:\n            self._under_way.discard(ledger_id)\n",
        (*_NODE, *_COPYING),
    ),
    Mutant(
        "one bookie alone is not waited for",
        "autorecovery/lost_bookies.py",
        "if len(new) > 1 or due_s <= now_s:",
        "if new:",
        ("tests/unit/autorecovery/test_decisions.py", *_AUDITOR),
    ),
    Mutant(
        "a drained bookie that was stopped counts as lost",
        "autorecovery/auditor.py",
        "        return (cookies | self._seen) - self._retired\n",
        "        return cookies | self._seen\n",
        _AUDITOR,
    ),
    Mutant(
        "a read-only bookie is lost",
        "autorecovery/auditor.py",
        "        available = self._bookies.available  # rule 1\n",
        "        available = self._bookies.writable  # rule 1\n",
        _AUDITOR,
    ),
    Mutant(
        "nobody hears that auto-recovery is off",
        "magnetar_core/bookkeeper/metadata/marks.py",
        "return not await self._store.exists(board.disabled_path(self._root))",
        "return True",
        (*_MARKS, *_AUDITOR),
    ),
    Mutant(
        "a check begins anew with each auditor",
        "autorecovery/periodic.py",
        "first = await self._progress() or 0",
        "first = 0",
        _PERIODIC,
    ),
    Mutant(
        "an entry goes to targets that are not to hold it",
        "autorecovery/copying.py",
        "held = [one for one in run if self._fragment.holds(index, one.entry_id)] if self._is_striped else list(run)",
        "held = list(run)",
        (*_COPYING, *_NODE),
    ),
    Mutant(
        "a token that may only read changes things",
        "autorecovery/admin/server.py",
        "        if not caller.may_write:\n",
        "        if not caller.name:\n",
        _SERVER,
    ),
    Mutant(
        "a token that was taken out of the file stays in force",
        "autorecovery/admin/token_file.py",
        "            self._tokens = None\n            log.error",
        "            log.error",
        _SERVER,
    ),
    Mutant(
        "without tokens other hosts change things",
        "autorecovery/admin/server.py",
        "if self._tokens is None and not self._is_local:",
        "if self._tokens is None and not self._is_local and False:",
        _SERVER,
    ),
    Mutant(
        "without tokens a page whose name was made to point here changes things",
        "autorecovery/admin/server.py",
        "if self._tokens is None and not _is_this_host(request.host):",
        "if self._tokens is None and not request.host:",
        _SERVER,
    ),
    Mutant(
        "a copy on a bookie that is away counts when others are switched off",
        "autorecovery/removal.py",
        "staying = set(available).difference(leaving, lacking)",
        "staying = metadata.bookies().difference(leaving, lacking)",
        _CALLS,
    ),
    Mutant(
        "a copy that a mark tells to be missing counts when others are switched off",
        "autorecovery/removal.py",
        "staying = set(available).difference(leaving, lacking)",
        "staying = set(available).difference(leaving)",
        _CALLS,
    ),
    Mutant(
        "a record that cannot be read does not keep bookies from being switched off",
        "autorecovery/admin/removal_calls.py",
        '                answer.add(Risk(ledger_id, Kind.UNREADABLE, None, f"its record cannot be read: {found}"))\n',
        "                continue\n",
        _CALLS,
    ),
    Mutant(
        "a bookie under drain is made writable",
        "autorecovery/admin/serving_calls.py",
        "if wanted == WRITABLE and state is not State.ACTIVE:",
        "if wanted == WRITABLE and state is State.DRAINED:",
        _CALLS,
    ),
    Mutant(
        "a cookie of another bookie is stored",
        "autorecovery/admin/cookie_calls.py",
        "        if named != bookie_id:\n",
        "        if not named:\n",
        _CALLS,
    ),
    Mutant(
        "a bookie is removed while records name it",
        "autorecovery/retirement.py",
        "        await self._check_free(bookie_id, progress)\n        await self._until_stopped(",
        "        await self._until_stopped(",
        _CALLS,
    ),
    Mutant(
        "a bookie that runs is removed",
        "autorecovery/retirement.py",
        '        return "read-only" if bookie_id in await self._directory.read_read_only() else None\n',
        "        return None\n",
        _CALLS,
    ),
    Mutant(
        "a bookie that was removed while it runs turns writable",
        "bookie/disks/draining.py",
        "            is_removed = found.state is State.ACTIVE and not await self._states.has_cookie(self._bookie_id)\n",
        "            is_removed = False\n",
        ("tests/unit/bookie/disks/test_read_only.py",),
    ),
    Mutant(
        "an auditor that takes a drain over does not read the copies of what was moved before",
        "autorecovery/draining.py",
        "        await drain.kept.add(left)  # rule 1: before the marks\n",
        "",
        _DRAINING,
    ),
    Mutant(
        "a failed drain is called drained although copies of what was moved are missing",
        "autorecovery/retirement.py",
        "        await self._check_proved(bookie_id)\n",
        "",
        _DRAINING,
    ),
    Mutant(
        "a bookie that was read-only before its drain is made writable when the drain is called off",
        "autorecovery/turning.py",
        '            if not await self.take(bookie_id):\n                return ""\n',
        "            await self.take(bookie_id)\n",
        _DRAINING,
    ),
    Mutant(
        "a move has no event",
        "magnetar_core/bookkeeper/metadata/bookie_states.py",
        "[Check(cookie.path, cookie.version), change, *event]",
        "[Check(cookie.path, cookie.version), change]",
        _STATES,
    ),
    Mutant(
        "an event is delivered whatever the receiver answers",
        "autorecovery/callback_rules.py",
        "return 200 <= status < 300",
        "return status < 500",
        _CALLBACKS,
    ),
    Mutant(
        "the events of one bookie do not wait for each other",
        "autorecovery/callback_rules.py",
        "return event.id if event.kind is EventKind.TEST else event.bookie",
        "return event.id",
        _CALLBACKS,
    ),
    Mutant(
        "a confirmed event is sent again while the store is away",
        "autorecovery/callbacks.py",
        "        if lane.confirmed is not None:\n",
        "        if False:\n",
        _CALLBACKS,
    ),
    Mutant(
        "a callback that is gone is made anew by an event",
        "autorecovery/callback_registry.py",
        "                    *(Check(self._path_of(one.callback.id), one.version) for one in wanting),\n",
        "",
        _REGISTRY,
    ),
    Mutant(
        "an event is handed out and stays in the list",
        "autorecovery/callback_registry.py",
        "                    Delete(path, node.version),\n",
        "",
        _REGISTRY,
    ),
    Mutant(
        "a mended report that is posted again stays mended",
        "magnetar_core/bookkeeper/metadata/damage_rules.py",
        "    if found.stage is not Stage.MENDED:\n        return after\n",
        "    if True:\n        return after\n",
        _REPORTS,
    ),
    Mutant(
        "a report is written as often as damage is met",
        "magnetar_core/bookkeeper/metadata/damage_reports.py",
        "max(now_s, self._written_s.get(key, now_s - _AGAIN_S) + _AGAIN_S)",
        "now_s",
        _REPORTS,
    ),
    Mutant(
        "what changes while all records are read is not read again",
        "autorecovery/catalogue.py",
        "            self._changed.update(ledger_ids_in(paths, self._root))\n",
        "            pass\n",
        _CATALOGUE,
    ),
    Mutant(
        "after a broken connection the index is believed",
        "autorecovery/catalogue.py",
        "        if paths is None:\n            self._changed = None\n",
        "        if paths is None:\n            pass\n",
        _CATALOGUE,
    ),
    Mutant(
        "records that could not be read are forgotten",
        "autorecovery/catalogue.py",
        "                self._changed |= left  # rule 3\n",
        "                pass\n",
        _CATALOGUE,
    ),
)
