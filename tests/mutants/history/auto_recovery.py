"""Of auto-recovery: audits, copies, locks, drains."""

from tests.mutants.catalogue import Mutant
from tests.mutants.history.mended import Mended, catalogued

MARKS = ("tests/unit/magnetar_core/bookkeeper/metadata/marks/test_board.py",)

MENDED = (
    Mended(
        "720a9539",
        "An auditor's memory grew with all ensembles that ledgers ever had.",
        Mutant(
            "history: ensembles that no ledger has any more are kept",
            "autorecovery/ledgers/index.py",
            "        if not self._ledgers_with[former]:\n            self._forget(former)\n",
            "",
            ("tests/unit/autorecovery/test_decisions.py",),
        ),
    ),
    Mended(
        "4ecb44d6",
        "The report of a node that was started again was gone when the session of its former process ended.",
        Mutant(
            "history: a report that was a former process's counts as ours",
            "autorecovery/reporting/reports.py",
            '            self._last_facts = facts if node is not None and node.own else b""\n',
            "            self._last_facts = facts\n",
            ("tests/unit/autorecovery/reporting/test_reports.py",),
        ),
    ),
    Mended(
        "6785c2fc",
        "A replication worker went round a hundred times a second while ledgers were due and nothing could begin.",
        Mutant(
            "history: what is due and cannot begin is looked at again at once",
            "autorecovery/repair/worker.py",
            "*(due - now for due in dues if due > began_s)",
            "*(due - now for due in dues)",
            ("tests/unit/autorecovery/test_schedules.py",),
        ),
    ),
    Mended(
        "9ad5735a",
        "Two repairs of one process worked on the same ledger, and the first one gave the lock of both back.",
        Mutant(
            "history: a lock does not exclude others of the same process",
            "magnetar_core/bookkeeper/metadata/marks/board.py",
            "        if ledger_id in self._ours:\n            return False\n        path",
            "        path",
            MARKS,
        ),
    ),
    Mended(
        "9ad5735a",
        "A lock of this session that somebody else of the process had taken counted as taken by who asked.",
        Mutant(
            "history: a lock of our session is ours, whoever took it",
            "magnetar_core/bookkeeper/metadata/marks/board.py",
            "            if node is None or not node.own or not may_be_ours:\n",
            "            if node is None or not node.own:\n",
            MARKS,
        ),
    ),
    Mended(
        "bea56cbc",
        "A bookie that turned writable between two looks was taken for stopped, and could be removed.",
        Mutant(
            "history: a bookie between the two lists is not registered",
            "autorecovery/lifecycle/retirement.py",
            '        return "writable" if bookie_id in await self._directory.read_writable() else None\n',
            "        return None\n",
            ("tests/unit/autorecovery/lifecycle/test_draining.py",),
        ),
    ),
    Mended(
        "6a6e377f",
        "After a lost answer no auditor was elected any more: a candidacy of the same session stood before the others.",
        catalogued("a candidacy that was left behind stays before the others"),
    ),
    Mended(
        "b1f9cb70",
        "A lock that a node left at its death stayed as long as the session: nobody repaired that ledger.",
        catalogued("a lock that a node left at its death stays"),
    ),
    Mended(
        "bb9de76f",
        "The lock of another worker, taken after our session, went with our mark: two repaired one ledger.",
        catalogued("the lock that another worker took after our session goes with our mark"),
    ),
    Mended(
        "bb9de76f",
        "A lock whose making was not answered was forgotten, and stayed as long as the session.",
        catalogued("a lock that nobody waited for is forgotten"),
    ),
    Mended(
        "bb9de76f",
        "A lock that was perhaps not given back stayed as long as the session.",
        catalogued("a lock that was perhaps not given back stays as long as the session"),
    ),
    Mended(
        "bb9de76f",
        "A worker that stopped left the locks that it was asking for.",
        catalogued("a worker that stops leaves the locks that it was asking for"),
    ),
    Mended(
        "e3740952",
        "A new auditor marked the ledgers of a bookie that was just being restarted.",
        catalogued("a new auditor marks the bookie that is just restarted"),
    ),
    Mended(
        "d33257c9",
        "A bookie that went while an audit read the records was marked at once.",
        catalogued("a bookie that goes while an audit reads the records is marked at once"),
    ),
    Mended(
        "d33257c9",
        "A check marked the ledgers of a bookie that was just being restarted.",
        catalogued("a check marks a bookie that is just restarted"),
    ),
    Mended(
        "87c2f845",
        "A copy that its target lost meanwhile counted as made.",
        catalogued("a copy that a target lost meanwhile counts"),
    ),
    Mended(
        "87c2f845",
        "A fragment with a lost entry was copied again at each attempt.",
        catalogued("a fragment with a lost entry is copied again at each attempt"),
    ),
    Mended(
        "c924e5de",
        "An auditor that took a drain over called it done without reading the copies that were made before.",
        catalogued("an auditor that takes a drain over does not read the copies of what was moved before"),
    ),
    Mended(
        "fbdd442c",
        "A ledger that a drain moved once more counted as proved by the first time.",
        catalogued("a ledger that is moved once more counts as proved"),
    ),
    Mended(
        "1e571e36",
        "A drain waited for the writers of open ledgers, which nobody told.",
        catalogued("the writer of an open ledger is not told that its bookie leaves"),
    ),
    Mended(
        "d52d1c86",
        "An open ledger that lacked copies was not looked at again before its writer's grace period was over.",
        catalogued("an open ledger is not looked at within its grace period"),
    ),
)
