"""Of managed ledgers and cursors: what is there, what was acknowledged, and what goes."""

from tests.mutants.catalogue import Mutant
from tests.mutants.history.mended import Mended, catalogued

UNIT = "tests/unit/managed_ledger"
FAULTS = (f"{UNIT}/test_ledger_under_faults.py",)
LOST = (f"{UNIT}/test_lost_data.py",)

MENDED = (
    Mended(
        "0ef43f0e",
        "Consumed ledgers of a terminated topic stayed for ever.",
        Mutant(
            "history: a terminated topic is not trimmed",
            "managed_ledger/ledger.py",
            "        if not self._appending.takes_appends and not self.is_terminated:\n",
            "        if not self._appending.takes_appends:\n",
            (f"{UNIT}/test_ledger.py",),
        ),
    ),
    Mended(
        "f88dff8d",
        "One entry that was lost made a whole ledger count as lost, when its handle was given up during the read.",
        Mutant(
            "history: a ledger whose handle was given up counts as lost",
            "managed_ledger/reading/reading.py",
            "            if handle is None:  # its record is gone, so it could not be opened, and nothing of "
            "it can be mended\n",
            "            if ledger_id not in self._handles:\n",
            LOST,
        ),
    ),
    Mended(
        "f125dd73",
        "An entry counted as lost although its copies had moved to other bookies, which were not asked.",
        Mutant(
            "history: what former bookies deny is lost",
            "managed_ledger/reading/reading.py",
            "        if metadata.segments != handle.metadata.segments:\n",
            "        if False:\n",
            LOST,
        ),
    ),
    Mended(
        "7e47acec",
        "Ledgers of a cursor whose listing was in doubt stayed for ever.",
        Mutant(
            "history: a ledger of a cursor that is in doubt is forgotten",
            "managed_ledger/cursors/cursor_store.py",
            "            self._in_doubt += (handle.ledger_id,)  # the node may name it: it stays until the "
            "node is known again (I57)"
            "\n",
            "",
            FAULTS,
        ),
    ),
    Mended(
        "d6c60746",
        "A cursor with many batches acknowledged in part was not stored any more.",
        Mutant(
            "history: a cursor is stored whatever its batches take",
            "managed_ledger/cursors/cursor_store.py",
            "        if batches_bytes < 0:\n",
            "        if False:\n",
            (f"{UNIT}/test_limits.py",),
        ),
    ),
    Mended(
        "6184e437",
        "Who opened a topic for long wrote over one that was deleted and made again meanwhile.",
        catalogued("who opens a topic for long writes over one that was made again"),
    ),
    Mended(
        "7a582d1c",
        "What was acknowledged behind the end at which somebody else closed a ledger was gone with it.",
        catalogued("a topic is left without what its ledger lacks"),
    ),
    Mended(
        "7a582d1c",
        "An unload left behind what its ledger lacked of what was acknowledged.",
        catalogued("an unload leaves behind what its ledger lacks"),
    ),
    Mended(
        "420b7980",
        "A topic's new owner wrote over the node of a cursor that the owner after it had written.",
        catalogued("a cursor's node is written over that the next owner wrote between question and reading"),
    ),
    Mended(
        "420b7980",
        "A former owner's late write of a cursor took the topic from its new owner.",
        catalogued("a former owner's late write takes the topic from the new one"),
    ),
    Mended(
        "420b7980",
        "A terminated topic was opened without being taken over: a former owner went on storing its cursors.",
        catalogued("a terminated topic is opened and not taken over"),
    ),
    Mended(
        "cdd3d8cf",
        "A node of a cursor that is newer than the metadata store's was written over.",
        catalogued("the older node of a cursor is written over"),
    ),
    Mended(
        "3d2d0881",
        "A topic that was deleted and made again while it was prepared was opened with the former record's ledger.",
        Mutant(
            "history: a prepared ledger is used behind newer ones",
            "managed_ledger/ledgers/preparing.py",
            "        return self.ahead.result().ledger_id > max(ledger_ids, default=-1)\n",
            "        return True\n",
            (f"{UNIT}/ledgers/test_preparing.py",),
        ),
    ),
)
