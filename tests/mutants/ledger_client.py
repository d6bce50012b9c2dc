"""Mistakes that the ledger client could make (see `catalogue`)."""

from tests.mutants.catalogue import Mutant

CLIENT = "magnetar_core/bookkeeper/client"
WRITER = ("tests/unit/magnetar_core/bookkeeper/client/deciding/test_writer.py",)
OUTSTANDING = ("tests/unit/magnetar_core/bookkeeper/client/deciding/test_outstanding.py",)
WRITER_SIMULATION = ("tests/simulation/test_writer_sim.py",)
RECOVERY = ("tests/unit/magnetar_core/bookkeeper/client/deciding/test_recovery.py",)
QUORUM = ("tests/property/test_quorum.py",)
WHOLE = ("tests/unit/magnetar_core/bookkeeper/client/test_client.py",)
ISOLATION = ("tests/unit/magnetar_core/bookkeeper/client/placing/test_isolation.py",)
REGIONS = ("tests/property/test_placement_in_regions.py",)
CHANGES_IN_REGIONS = ("tests/unit/magnetar_core/bookkeeper/client/placing/test_regions.py",)
PLACEMENT = ("tests/property/test_placement.py",)
BELIEF = ("tests/unit/magnetar_core/bookkeeper/client/deciding/test_belief.py",)
READING = ("tests/unit/magnetar_core/bookkeeper/client/deciding/test_recovery.py",)

_LARGE = ("tests/unit/magnetar_core/bookkeeper/client/test_large_answers.py",)

MUTANTS = (
    Mutant(
        "a reconnect to the metadata store makes idle writers leave their bookies",
        f"{CLIENT}/write_handle.py",
        "            if is_asked:\n",
        "            if True:\n",
        ("tests/unit/magnetar_core/bookkeeper/client/deciding/test_belief.py",),
    ),
    Mutant(
        "a bookie that refuses a ledger is asked for it again",
        f"{CLIENT}/deciding/writer.py",
        "            self.refusing.add(bookie)\n",
        "            pass\n",
        (*WHOLE, "-k", "newer_than"),
    ),
    Mutant(
        "a ledger that is older than all disks is held",
        f"{CLIENT}/deciding/writer.py",
        "        if not self.quorum.can_acknowledge_without(never):\n",
        "        if False:\n",
        (*WHOLE, "-k", "older_than and sizes0"),
    ),
    Mutant(
        "a bookie that refused while its disk was full never comes back to its ledgers",
        f"{CLIENT}/deciding/writer.py",
        "        if is_writable and isinstance(error, BookieReadOnly):\n",
        "        if isinstance(error, BookieReadOnly):\n",
        WRITER,
    ),
    # -- whether the ledger is still the writer's
    Mutant(
        "an answer over a connection that was made anew counts at once",
        f"{CLIENT}/deciding/belief.py",
        "        self._unproved[channel] = socket\n        return True\n",
        "        return False\n",
        WRITER_SIMULATION,
    ),
    Mutant(
        "a connection that was made anew while the record was read counts as proved by it",
        f"{CLIENT}/deciding/belief.py",
        "                proved[channel] = socket\n",
        "                proved[channel] = max(socket, self._unproved.get(channel, 0))\n",
        BELIEF,
    ),
    Mutant(
        "entries are acknowledged while the record is read",
        f"{CLIENT}/deciding/writer.py",
        "        if self.is_changing or self.is_doubted:  # rules 3 and 10\n",
        "        if self.is_changing:  # rules 3 and 10\n",
        BELIEF,
    ),
    Mutant(
        "a store that stands still stops a writer after a pause",
        f"{CLIENT}/write_handle.py",
        "            self._pool.clock.call_later(PAUSE_READ_S, self._on_silence)\n",
        "",
        BELIEF,
    ),
    Mutant(
        "the record is read from a server that may be behind",
        f"{CLIENT}/write_handle.py",
        "                        await self._record.check(synced=True)\n",
        "                        await self._record.check(synced=False)\n",
        BELIEF,
    ),
    Mutant(
        "a recovery that is under way ends an idle writer",
        f"{CLIENT}/write_handle.py",
        "        except LedgerFenced:\n            pass  # a recovery is under way; its end rings again\n",
        "        except LedgerFenced as error:\n            self._fail(error)\n",
        BELIEF,
    ),
    # -- groups of bookies
    Mutant(
        "a bookie of another group takes the place of one that is missing",
        f"{CLIENT}/placing/isolation.py",
        "        allowed |= present - foreign\n",
        "        allowed |= present\n",
        ISOLATION,
    ),
    Mutant(
        "an ensemble change does not look at the groups of its ledger",
        f"{CLIENT}/write_handle.py",
        "pool.usable(free, self.metadata.custom_metadata, len(writer.ensemble), stay),",
        "free,",
        ISOLATION,
    ),
    # -- positions without a bookie
    Mutant(
        "a starved writer holds its entries for ever",
        f"{CLIENT}/deciding/writer.py",
        "        return self._fail(self._starved_error()) if now_s >= self._starved_until_s else None\n",
        "        return None\n",
        WRITER,
    ),
    Mutant(
        "a writer that was starved once fails sooner the next time",
        f"{CLIENT}/deciding/writer.py",
        "        self._starved_until_s = None\n        return Acknowledge(confirmed)\n",
        "        return Acknowledge(confirmed)\n",
        WRITER,
    ),
    # -- leaving bookies that are about to stop
    Mutant(
        "a bookie that still answers is left without a barrier",
        f"{CLIENT}/deciding/writer.py",
        "        return self._start_change(leaving) if leaving else None\n",
        "        return ChangeEnsemble(leaving) if leaving else None\n",
        WRITER,
    ),
    Mutant(
        "a bookie is left although an earlier failure waits for its change",
        f"{CLIENT}/deciding/writer.py",
        "        if self.state is not State.OPEN or self.is_changing or self._delayed:\n",
        "        if self.state is not State.OPEN or self.is_changing:\n",
        WRITER,
    ),
    Mutant(
        "a read-only bookie is left whether or not another one takes its place",
        f"{CLIENT}/write_handle.py",
        "                    if writer.leave(replacements) is None:\n",
        "                    if writer.leave(leaving) is None:\n",
        WHOLE,
    ),
    Mutant(
        "all ledgers leave a bookie at once",
        f"{CLIENT}/wire/pool.py",
        "        self.moves = asyncio.Semaphore(MOVES_AT_ONCE)\n",
        "        self.moves = asyncio.Semaphore(10 * MOVES_AT_ONCE)\n",
        WHOLE,
    ),
    Mutant(
        "a bookie that is stopped refuses entries while its writers leave",
        "bookie/leaving.py",
        "    quiet, before = 0, adds()\n",
        "    return\n    quiet, before = 0, adds()\n",
        ("tests/unit/bookie/test_leaving.py",),
    ),
    Mutant(
        "a bookie that is stopped waits where nobody else is writable",
        "bookie/leaving.py",
        "            if not await directory.read_writable() - {bookie_id}:\n",
        "            if not await directory.read_writable():\n",
        ("tests/unit/bookie/test_leaving.py",),
    ),
    # -- writing
    Mutant(
        "an ack quorum is one bookie less",
        f"{CLIENT}/deciding/writer.py",
        "pending.get(confirmed + 1)) is not None and add.answered.bit_count() >= ack:",
        "pending.get(confirmed + 1)) is not None and add.answered.bit_count() >= ack - 1:",
        WRITER,
    ),
    Mutant(
        "adds do not carry the LAC",
        f"{CLIENT}/deciding/writer.py",
        "ledger_id, lac = self.ledger_id, self.last_add_confirmed",
        "ledger_id, lac = self.ledger_id, -1",
        WRITER,
    ),
    Mutant(
        "adds carry a LAC that is not confirmed",
        f"{CLIENT}/deciding/writer.py",
        "ledger_id, lac = self.ledger_id, self.last_add_confirmed",
        "ledger_id, lac = self.ledger_id, self.last_add_pushed",
        WRITER,
    ),
    Mutant(
        "entries are acknowledged while the ensemble changes",
        f"{CLIENT}/deciding/writer.py",
        "        if self.is_changing or self.is_doubted:  # rules 3 and 10\n            return None\n",
        "",
        WRITER,
    ),
    Mutant(
        "answers of a bookie that was replaced still count",
        f"{CLIENT}/deciding/writer.py",
        "            add.answered &= ~replaced\n",
        "            add.answered |= 0\n",
        WRITER,
    ),
    Mutant(
        "a bookie that is no longer at its position confirms",
        f"{CLIENT}/deciding/writer.py",
        "        if self.state is not State.OPEN or self.ensemble[index] != bookie:\n            return None\n"
        "        bit = 1 << index",
        "        if self.state is not State.OPEN:\n            return None\n        bit = 1 << index",
        WRITER_SIMULATION,
    ),
    Mutant(
        "the new segment begins one entry early",
        f"{CLIENT}/deciding/writer.py",
        "return self.last_add_confirmed + 1, ensemble",
        "return max(self.last_add_confirmed, 0), ensemble",
        WRITER,
    ),
    Mutant(
        "a fenced writer changes its ensemble instead of stopping",
        f"{CLIENT}/deciding/writer.py",
        "isinstance(error, LedgerFenced | Unauthorized | ClientClosed)",
        "isinstance(error, Unauthorized | ClientClosed)",
        WRITER,
    ),
    Mutant(
        "a ledger is sealed behind what was not acknowledged",
        f"{CLIENT}/deciding/writer.py",
        "        return self.last_add_confirmed, self.confirmed_length\n",
        "        return self.last_add_pushed, self.length\n",
        WRITER,
    ),
    Mutant(
        "what another bookie has confirmed is not sent to a new one",
        f"{CLIENT}/deciding/writer.py",
        "if masks[add.entry_id % size] >> index & 1 and not add.answered >> index & 1",
        "if masks[add.entry_id % size] >> index & 1 and not add.answered",
        WRITER,
    ),
    Mutant(
        "recovery writes back as a writer",
        f"{CLIENT}/deciding/writer.py",
        "FLAG_RECOVERY_ADD | FLAG_HIGH_PRIORITY if recovery else 0",
        "FLAG_HIGH_PRIORITY if recovery else 0",
        WHOLE,
    ),
    Mutant(
        "a bookie outside the write set counts",
        f"{CLIENT}/deciding/writer.py",
        "add.answered |= bit & masks[entry_id % size]",
        "add.answered |= bit",
        WRITER,
    ),
    Mutant(
        "a failure that changes nothing now is forgotten",
        f"{CLIENT}/deciding/writer.py",
        "            self._delayed[index] = bookie\n            return None\n",
        "            return None\n",
        WRITER,
    ),
    Mutant(
        "a delayed change begins in the middle of another",
        f"{CLIENT}/deciding/writer.py",
        "if not (self._delayed or self._leaving) or self.is_changing or self.state is not State.OPEN:",
        "if not (self._delayed or self._leaving) or self.state is not State.OPEN:",
        WRITER_SIMULATION,
    ),
    # -- quorums
    Mutant(
        "coverage with one bookie too few",
        f"{CLIENT}/deciding/quorum.py",
        "return all((mask & ~heard).bit_count() < self.ack for mask in self.masks)",
        "return all((mask & ~heard).bit_count() <= self.ack for mask in self.masks)",
        QUORUM,
    ),
    Mutant(
        "absence is proved by one negative too few",
        f"{CLIENT}/deciding/quorum.py",
        "return self.write - self.ack + 1",
        "return max(self.write - self.ack, 1)",
        RECOVERY,
    ),
    Mutant(
        "a writer goes on that can reach no ack quorum",
        f"{CLIENT}/deciding/quorum.py",
        "return all((mask & ~missing).bit_count() >= self.ack for mask in self.masks)",
        "return all((mask & ~missing).bit_count() >= 1 for mask in self.masks)",
        WRITER,
    ),
    # -- recovery
    Mutant(
        "the first LAC that is heard counts, not the highest",
        f"{CLIENT}/deciding/recovery.py",
        "            if answer.last_add_confirmed > self._best_lac:\n",
        "            if answer.last_add_confirmed > self._best_lac and not self._best_length:\n",
        RECOVERY,
    ),
    Mutant(
        "the LAC of a segment may lie before it",
        f"{CLIENT}/deciding/recovery.py",
        "self._best_lac = first_entry_id - 1",
        "self._best_lac = -1",
        RECOVERY,
    ),
    Mutant(
        "silence counts as a negative",
        f"{CLIENT}/deciding/recovery.py",
        "                return Absent()\n        else:\n            self._first_error.add(answer)\n",
        "                return Absent()\n        else:\n            self._missing += 1\n"
        "            self._first_error.add(answer)\n"
        "            if self._missing >= self._quorum.absence:\n                return Absent()\n",
        RECOVERY,
    ),
    Mutant(
        "a bookie that failed counts as fenced",
        f"{CLIENT}/deciding/recovery.py",
        "            if isinstance(answer, DigestMismatch):\n                self.heard |= bit",
        "            if True:\n                self.heard |= bit",
        RECOVERY,
    ),
    Mutant(
        "recovery stops one entry early",
        f"{CLIENT}/recovery_driver.py",
        "        last = writer.last_add_pushed\n",
        "        last = max(writer.last_add_pushed - 1, floor)\n",
        WHOLE,
    ),
    Mutant(
        "recovery begins one entry late",
        f"{CLIENT}/recovery_driver.py",
        "entry_id + len(reads) + 1, key)",
        "entry_id + len(reads) + 2, key)",
        WHOLE,
    ),
    Mutant(
        "recovery seals before what it wrote back is confirmed",
        f"{CLIENT}/recovery_driver.py",
        "            try:\n                await writer.wait_for(last)\n",
        "            try:\n                pass\n",
        WHOLE,
    ),
    Mutant(
        "recovery seals a ledger whose ensemble changed meanwhile",
        f"{CLIENT}/recovery_driver.py",
        "if versioned.metadata.last_segment != snapshot.last_segment:",
        "if versioned.metadata.last_segment == ():",
        WHOLE,
    ),
    Mutant(
        "recovery forgets the ensembles to which it wrote back",
        f"{CLIENT}/recovery_driver.py",
        "closed = versioned.metadata.closed(last, length, ensembles)",
        "closed = versioned.metadata.closed(last, length)",
        WHOLE,
    ),
    # -- handles
    Mutant(
        "who waits for the last entry is not woken",
        f"{CLIENT}/write_handle.py",
        "            if waiting and waiting[0][0] <= confirmed:\n                count = bisect_right(",
        "            if waiting and waiting[0][0] < confirmed:\n                count = bisect_right(",
        WHOLE,
    ),
    Mutant(
        "an ensemble change goes over the record of another client",
        f"{CLIENT}/ledger_record.py",
        "                judge_conflict(own, current.metadata, self._ledger_id)\n"
        "                self._versioned = current\n        raise self._too_many_conflicts()\n\n    async def seal",
        "                self._versioned = current\n        raise self._too_many_conflicts()\n\n    async def seal",
        WHOLE,
    ),
    Mutant(
        "a fenced writer seals the ledger",
        f"{CLIENT}/write_handle.py",
        "            if isinstance(writer.error, LedgerFenced | NoSuchLedger):\n"
        "                raise bare(writer.error)\n",
        "",
        WHOLE,
    ),
    Mutant(
        "a ledger that another closed elsewhere counts as closed here",
        f"{CLIENT}/ledger_record.py",
        "if (current.metadata.last_entry_id, current.metadata.length) != (last_entry_id, length):",
        "if current.metadata.last_entry_id < -1:",
        WHOLE,
    ),
    Mutant(
        "a reader may read what is not confirmed",
        f"{CLIENT}/reading/read_handle.py",
        "        if last > self.last_add_confirmed:\n",
        "        if last > self.last_add_confirmed + 1:\n",
        WHOLE,
    ),
    Mutant(
        "the LAC of a reader goes back",
        f"{CLIENT}/reading/read_handle.py",
        "if confirmed.last_add_confirmed > self.last_add_confirmed:",
        "if confirmed.last_add_confirmed != self.last_add_confirmed:",
        WHOLE,
    ),
    # -- reading
    Mutant(
        "an entry that one bookie holds counts as held",
        f"{CLIENT}/deciding/reader.py",
        "        if self._held >= self._quorum.ack:\n",
        "        if self._held >= 1:\n",
        READING,
    ),
    Mutant(
        "a missing copy hides a broken connection",
        f"{CLIENT}/deciding/reader.py",
        "            or is_missing(self.error)\n",
        "",
        READING,
    ),
    Mutant(
        "a batch goes on behind a damaged entry",
        f"{CLIENT}/deciding/reader.py",
        "                raise\n            break\n",
        "                raise\n            continue\n",
        READING,
    ),
    Mutant(
        "a bookie of the ensemble takes another position of it",
        f"{CLIENT}/placing/ensembles.py",
        "excluded = {*ensemble, *failed.values(), *unreachable}",
        "excluded = {*failed.values(), *unreachable}",
        READING,
    ),
    Mutant(
        "a replacement comes from any rack",
        f"{CLIENT}/placing/ensembles.py",
        "distance(self._preferred[at], location.rack)\n",
        "0\n",
        PLACEMENT,
    ),
    Mutant(
        "the last window, which meets the first one, is not looked at",
        f"{CLIENT}/placing/ensembles.py",
        "self._windows = windows(len(fixed), write_quorum)\n",
        "self._windows = windows(len(fixed), write_quorum)[:1]\n",
        PLACEMENT,
    ),
    Mutant(
        "a region may have more copies than its share",
        f"{CLIENT}/placing/topology.py",
        "shares(write_quorum, among)[0])",
        "write_quorum)",
        REGIONS,
    ),
    Mutant(
        "an ack quorum of copies may be in one region less than durability asks for",
        f"{CLIENT}/placing/ensembles.py",
        "    return ack_quorum - 1\n",
        "    return ack_quorum\n",
        REGIONS,
    ),
    Mutant(
        "a replacement takes a window out of the regions that durability asks for",
        f"{CLIENT}/placing/ensembles.py",
        "rules.durable) <= limit else None for window in every",
        "rules.durable) < 0 else None for window in every",
        REGIONS,
    ),
    Mutant(
        "an ensemble change does not look at the ack quorum",
        f"{CLIENT}/write_handle.py",
        "            ack_quorum=writer.quorum.ack,\n",
        "",
        CHANGES_IN_REGIONS,
    ),
    Mutant(
        "a bookie that is back is not taken while there is another, which may not be",
        f"{CLIENT}/deciding/writer.py",
        " and successors(self._left_out):",
        ":",
        CHANGES_IN_REGIONS,
    ),
    Mutant(
        "copies are moved although nothing is better for it",
        f"{CLIENT}/placing/ensembles.py",
        "            if now < lacking:\n",
        "            if now <= lacking:\n",
        PLACEMENT,
    ),
    # -- which answer belongs to which request
    Mutant(
        "the youngest of equal adds gets the answer",
        f"{CLIENT}/deciding/outstanding.py",
        "                        adder = waiting.pop(0)\n",
        "                        adder = waiting.pop()\n",
        OUTSTANDING,
    ),
    Mutant(
        "an add that is sent again expires with the one that failed",
        f"{CLIENT}/deciding/outstanding.py",
        "        self._add_deadlines.clear()\n",
        "",
        OUTSTANDING,
    ),
    Mutant(
        "an add whose answer is lost keeps its entry for ever",
        f"{CLIENT}/deciding/outstanding.py",
        "            if overtaken < OVERTAKEN_MAX and now_s - alive_s < self._timeout_s:\n",
        "            if now_s - alive_s < self._timeout_s:\n",
        OUTSTANDING,
    ),
    # -- large answers
    Mutant(
        "a socket goes on waiting for much after a large answer",
        "magnetar_core/bookkeeper/client/wire/connection.py",
        "            self._wake_at(min(self._receiver.missing_bytes, _WAKE_BYTES_MAX) or 1)\n",
        "            self._wake_at(min(self._receiver.missing_bytes, _WAKE_BYTES_MAX) or self._wakes_at)\n",
        _LARGE,
    ),
    Mutant(
        "room is used again while somebody looks at it",
        "magnetar_core/runtime/data/recycled.py",
        "    except BufferError:\n        return False\n",
        "    except BufferError:\n        return True\n",
        _LARGE,
    ),
    Mutant(
        "what one connection received is overwritten by the next",
        "magnetar_core/bookkeeper/wire/framing.py",
        "        frames = self._splitter.feed(bytes(self._chunk[:count]))\n",
        "        frames = self._splitter.feed(self._chunk[:count])  # type: ignore[arg-type]\n",
        _LARGE,
    ),
    Mutant(
        "what came of a large frame with the one before it is lost",
        "magnetar_core/bookkeeper/wire/framing.py",
        "        self._large[: self._at] = held[LENGTH.size :]\n",
        "",
        ("tests/unit/magnetar_core/bookkeeper/wire/test_framing.py",),
    ),
)
