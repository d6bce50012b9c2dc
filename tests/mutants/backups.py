"""Mistakes in backups, in moved data, and where ledgers get more copies."""

from tests.mutants.catalogue import Mutant

BACKUP = "tests/unit/magnetar/processes/backup"
STORE = ("tests/unit/magnetar_core/bookkeeper/metadata/stores/test_embedded.py",)
SNAPSHOT = (f"{BACKUP}/test_snapshot.py",)
COPYING = (f"{BACKUP}/test_copying.py",)
MANIFEST = (f"{BACKUP}/test_manifest.py",)
DUMPING = (f"{BACKUP}/test_dumping.py",)
TOPIC_FORMAT = (f"{BACKUP}/test_topic_format.py",)
TOPIC_COPYING = (f"{BACKUP}/test_topic_copying.py",)
MOVED = ("tests/unit/bookie/disks/test_moved.py",)
WIDENING = ("tests/unit/magnetar/inspect/test_widening.py",)

MUTANTS = (
    # -- the moment of a snapshot
    Mutant(
        "metadata change while what belongs to them is copied",
        "magnetar_core/bookkeeper/metadata/stores/embedded.py",
        "        with self._writing:\n            self._database.write(batch)",
        "        if batch:\n            self._database.write(batch)",
        (*STORE, "-k", "nothing_changes"),
    ),
    Mutant(
        "a number of a ledger is known before it is on the disk",
        "magnetar_core/bookkeeper/metadata/stores/embedded.py",
        "        await self._wait_for_earlier()  # rule 3: who keeps the number must not be ahead of the disk\n",
        "",
        (*STORE, "-k", "nothing_changes"),
    ),
    Mutant(
        "an entry log that is linked gets more entries",
        "magnetar/processes/backup/snapshot.py",
        "            directory.logs.end_log()  # rule 4\n",
        "",
        (*SNAPSHOT, "-k", "stays_as_it_was"),
    ),
    Mutant(
        "what is written behind the end of a journal is in the backup",
        "magnetar/processes/backup/snapshot.py",
        "            size = end.offset if file_id == end.file_id else os.stat(path).st_size",
        "            size = os.stat(path).st_size",
        (*SNAPSHOT, "-k", "stays_as_it_was"),
    ),
    Mutant(
        "what a restart reads of a journal is a hole",
        "magnetar/processes/backup/snapshot.py",
        "            hole_end = mark.offset - kept_bytes if file_id == mark.file_id else 0\n",
        "            hole_end = end.offset if file_id == mark.file_id else 0\n",
        (*SNAPSHOT, "-k", "is_a_hole"),
    ),
    Mutant(
        "a snapshot fills the disk of the store",
        "magnetar/processes/backup/snapshot.py",
        "            self._check_room()\n",
        "",
        (*SNAPSHOT, "-k", "without_room"),
    ),
    # -- backup and restore
    Mutant(
        "a backup that failed stays",
        "magnetar/processes/backup/copying.py",
        "        into.abandon()\n",
        "",
        (*COPYING, "-k", "fills"),
    ),
    Mutant(
        "a file that has changed is taken from the earlier backup",
        "magnetar/processes/backup/manifest.py",
        "    return last.endswith(",
        '    return folder == "" or last.endswith(".txn") or last.endswith(',
        (*MANIFEST, "-k", "unchanged"),
    ),
    Mutant(
        "an earlier backup of another store is linked",
        "magnetar/processes/backup/manifest.py",
        "    if earlier is None or earlier.instance_id != instance_id:\n",
        "    if earlier is None:\n",
        (*MANIFEST, "-k", "unchanged"),
    ),
    Mutant(
        "a backup of a newer release is restored",
        "magnetar/processes/backup/manifest.py",
        'value["format"] > FORMAT:',
        'value["format"] > FORMAT + 1:',
        (*MANIFEST, "-k", "newer"),
    ),
    Mutant(
        "a damaged backup is restored",
        "magnetar/processes/backup/restoring.py",
        "    if (size[0], digest.hexdigest()) != (file.bytes, file.sha256):\n",
        "    if size[0] != file.bytes:\n",
        (*COPYING, "-k", "changed_since"),
    ),
    Mutant(
        "a restore that was cut short starts",
        "magnetar/processes/backup/restoring.py",
        '        replace_file(OsFiles(), str(data / RESTORING), b"")\n',
        "",
        (*COPYING, "-k", "cut_short"),
    ),
    Mutant(
        "a restored store is taken for the original",
        "magnetar/processes/backup/restoring.py",
        "        identity = str(uuid.uuid4())\n",
        '        identity = (await store.get(f"{ROOT}/INSTANCEID")).value.decode()\n',
        (*COPYING, "-k", "id_of_its_own"),
    ),
    # -- dumps of metadata
    Mutant(
        "records of ledgers are older than those of the topics that name them",
        "magnetar/processes/backup/dumping.py",
        '(("/", root), (root, ""))',
        '((root, ""), ("/", root))',
        (*DUMPING, "-k", "come_last"),
    ),
    Mutant(
        "a dump is mixed with what a store has",
        "magnetar/processes/backup/dumping.py",
        "    if there:\n",
        "    if not there and source is None:\n",
        (*DUMPING, "-k", "has_records"),
    ),
    Mutant(
        "a store of which half is back has the id of the cluster",
        "magnetar/processes/backup/dumping.py",
        "for node in chunk if node[0] != identity[0]",
        "for node in chunk",
        (*DUMPING, "-k", "no_id"),
    ),
    Mutant(
        "numbers of ledgers are given again",
        "magnetar/processes/backup/dumping.py",
        "    await _use_up_numbers(store, head.root, end.next_ledger)\n",
        "",
        (*DUMPING, "-k", "put_back or long_numbers"),
    ),
    # -- moved data
    Mutant(
        "a directory that is missing counts as moved",
        "bookie/disks/cookie.py",
        '    problems = [f"{place} has no cookie" for place, cookie in on_disk.items() if cookie is None]\n',
        "    problems: list[str] = []\n",
        (*MOVED, "-k", "others_were_not"),
    ),
    Mutant(
        "a directory that the bookie never had counts as moved",
        "bookie/disks/cookie.py",
        "            if cookie not in (stored, expected) and not problems:\n",
        "            if cookie is None:\n",
        (*MOVED, "-k", "others_were_not"),
    ),
    Mutant(
        "ledger directories change places",
        "bookie/disks/cookie.py",
        "            if ledger_id % len(directories) != number:\n",
        "            if ledger_id < 0:\n",
        (*MOVED, "-k", "order"),
    ),
    # -- a topic whole
    Mutant(
        "a copy of a topic that lacks an entry is called whole",
        "magnetar/processes/backup/topic_format.py",
        "        if tail != (count, size_bytes):\n",
        "        if tail.entries < count:\n",
        (*TOPIC_FORMAT, "-k", "left_out"),
    ),
    Mutant(
        "the version of a schema means another one at the target",
        "magnetar/processes/backup/topic_format.py",
        "        self._versions |= {version: version + _WITHOUT_SCHEMA for version in taken if version not in"
        " versions}\n",
        "        del taken\n",
        (*TOPIC_FORMAT, "-k", "had_no_schema"),
    ),
    Mutant(
        "messages that expired while a topic is copied are taken for markers",
        "magnetar/processes/backup/topic_copying.py",
        '            if any(name.lower() == _MARKER for name in admin.answer("GET", path).headers):\n',
        '            if admin.answer("GET", path).headers:\n',
        (*TOPIC_COPYING, "-k", "must_be_a_marker"),
    ),
    Mutant(
        "an import holds a whole topic in memory",
        "magnetar/processes/backup/topic_copying.py",
        "                await producer.answers(AT_ONCE - 1)\n",
        "",
        (*TOPIC_COPYING, "-k", "under_way"),
    ),
    # -- more copies
    Mutant(
        "a ledger that lacks copies is not marked",
        "magnetar/inspect/widening.py",
        "    for bookie_id in added:\n",
        "    for bookie_id in ():\n",
        (*WIDENING, "-k", "is_marked and told"),
    ),
    Mutant(
        "a repair takes the mark down that it did not look at",
        "magnetar/inspect/widening.py",
        "        elif not await board.lock(ledger_id, holder):\n",
        "        elif ledger_id < 0:\n",
        (*WIDENING, "-k", "locked or told"),
    ),
    Mutant(
        "a striped ledger gets more copies",
        "magnetar_core/bookkeeper/metadata/ledgers/ledger_metadata.py",
        "if not self.is_closed or self.ensemble_size != self.write_quorum or copies < self.write_quorum:",
        "if not self.is_closed:",
        (*WIDENING, "-k", "others_never"),
    ),
)
