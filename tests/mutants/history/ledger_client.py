"""Of the ledger client: writers, recoveries, readers."""

from tests.mutants.catalogue import Mutant
from tests.mutants.history.mended import Mended, catalogued

CLIENT = ("tests/unit/magnetar_core/bookkeeper/client/test_client.py",)

MENDED = (
    Mended(
        "7a582d1c",
        "After all bookies of an idle ledger were replaced by empty ones, what was acknowledged was gone.",
        Mutant(
            "history: a writer does not ask whether its ledger is still its own",
            "magnetar_core/bookkeeper/client/ledger_record.py",
            "            await self._ledgers.sync()\n        current = await self._read()\n",
            "            await self._ledgers.sync()\n        return False\n        current = await self._read()\n",
            ("tests/unit/magnetar_core/bookkeeper/client/deciding/test_belief.py",),
        ),
        (catalogued("a new bookie takes the adds of older ledgers"),),
    ),
    Mended(
        "7a582d1c",
        "An answer of a bookie that was replaced meanwhile counted before the ledger's record was read.",
        catalogued("an answer over a connection that was made anew counts at once"),
    ),
    Mended(
        "7a582d1c",
        "A writer acknowledged entries while it was in doubt whether the ledger is still its own.",
        catalogued("entries are acknowledged while the record is read"),
    ),
    Mended(
        "8ecc14dc",
        "A takeover of many ledgers failed, since the outbox to a bookie was full for a moment.",
        Mutant(
            "history: a recovery does not wait for room in an outbox",
            "magnetar_core/bookkeeper/client/recovery_driver.py",
            "            await writer.until_writable()\n",
            "",
            CLIENT,
        ),
    ),
    Mended(
        "255f56dc",
        "A client asked the bookies of a ledger that is fenced over and over, without a pause.",
        Mutant(
            "history: a bookie that does not hold a read is asked again at once",
            "magnetar_core/bookkeeper/client/reading/long_poll.py",
            "                await self._pool.clock.sleep(min(max(held_until_s - self._pool.clock.monotonic(), "
            "0.0), _PAUSE_S))\n",
            "",
            ("tests/unit/magnetar_core/bookkeeper/client/reading/test_long_poll.py",),
        ),
    ),
    Mended(
        "2a759071",
        "A writer asked a bookie that refuses its ledger again and again, and its topic stood still.",
        catalogued("a bookie that refuses a ledger is asked for it again"),
    ),
    Mended(
        "2a759071",
        "A bookie that refused entries while its disk was full never came back to its ledgers.",
        catalogued("a bookie that refused while its disk was full never comes back to its ledgers"),
    ),
    Mended(
        "24e82865",
        "A writer did not take its old bookie back while there was another one that may not be in its place.",
        catalogued("a bookie that is back is not taken while there is another, which may not be"),
    ),
    Mended(
        "1597ba72",
        "A writer that had been starved once failed at the next bookie that was away.",
        catalogued("a writer that was starved once fails sooner the next time"),
    ),
    Mended(
        "8de88539",
        "A ledger's handle whose close was cancelled stayed in memory, and its end was an error of ours.",
        Mutant(
            "history: a close that was cancelled is asked for its error",
            "magnetar_core/bookkeeper/client/write_handle.py",
            "(closing.cancelled() or closing.exception() is not None)",
            "closing.exception() is not None",
            CLIENT,
        ),
    ),
)
