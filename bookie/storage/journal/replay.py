"""Reads the journal after a start: every record after the mark, in order, or an error that keeps the bookie down.

Rules:

1. The marked file exists, and no file is missing between it and the newest one. The first mark, 0:0, means
   everything that is there.
2. A scan may stop early only if nothing was written later: a torn end followed by records in a later file is damage.
3. A file lacks its header only if a crash came while it was created. Then it has no records, nor has any later file,
   and no mark names it.
4. A mark names the end of a group that was synced before. If none ends there, the file was cut or is another one. So
   was a journal that ends before what PLACE_FILE says of it.
5. … unless Apache's bookie had the folder meanwhile: it reads our last file to its end before it begins one of its own,
   and its mark may name any place there (of 4.18: behind the length of zero that it takes for the end). Nothing behind
   that place is left to be read.
"""

import logging
import posixpath
from collections.abc import Callable
from itertools import pairwise
from typing import NoReturn

from bookie.storage.journal import format as fmt
from bookie.storage.journal.format import Mark, Record, Scan
from bookie.storage.journal.writer import file_name, list_files
from magnetar_core.runtime.files import File, Files, read_file
from magnetar_core.runtime.types import MIB, Corruption

log = logging.getLogger(__name__)


def replay(
    files: Files, directory: str, mark: Mark, apply: Callable[[Record], None], *, was_synced: bool = True
) -> int:
    """Call *apply* with every record of *directory* from *mark* on; return their number.

    *was_synced*: rule 4 holds (it does not without journalSyncData). Raises Corruption.
    """
    count = 0
    torn: str | None = None
    end = mark
    ids = _files_from(files, directory, mark)
    for file_id in ids:
        path = posixpath.join(directory, file_name(file_id))
        file = files.open(path)
        try:
            head = file.read_at(0, fmt.HEADER_BYTES)
            header = fmt.decode_header(head, path)
            if header is not None and header.version == 1 and _is_torn_header(file, head):
                header = None
            if header is None:
                if _holds_anything(file) or (file_id == mark.file_id and mark.offset):
                    raise Corruption(f"{path} has no header, and entries stood in it; restore it or take the bookie "
                                     "out of service")  # fmt: skip
                torn = torn or f"{path} has no header"
                continue
            start = mark.offset if file_id == mark.file_id else 0
            if was_synced and header.sealed and start > header.first_offset and not _ends_group(file, header, mark):
                if file_id + 1 in ids and is_apaches(files, directory, file_id + 1):
                    continue  # rule 5
                _refuse_mark(file, mark)
            scan = Scan(file.read_at, header, file_id, path, start)
            end = Mark(file_id, scan.end_offset)
            for record in scan:
                if torn is not None:
                    raise Corruption(
                        f"{torn}, but {path} has records: the end of the older file is not a write that a crash "
                        "interrupted; restore it or take the bookie out of service"
                    )
                apply(record)
                count += 1
            end = Mark(file_id, scan.end_offset)
            if scan.torn is not None:
                torn = f"{path}: {scan.torn}"
                log.warning("journal ends early: %s (a write that was never acknowledged)", torn)
        finally:
            file.close()
    place = _place(files, directory)
    if was_synced and end < place:
        raise Corruption(
            f"the journal in {directory} ends at {file_name(end.file_id)}:{end.offset}, and was synced up to "
            f"{file_name(place.file_id)}:{place.offset}; restore it or take the bookie out of service"
        )
    return count


def _place(files: Files, directory: str) -> Mark:
    path = posixpath.join(directory, fmt.PLACE_FILE)
    return fmt.decode_place(read_file(files, path)) if files.exists(path) else fmt.START


def is_ours(files: Files, directory: str, file_id: int) -> bool:
    """Whether our bookie wrote the journal file, and not Apache's. Raises Corruption, OSError."""
    header = _header(files, directory, file_id)
    return header is not None and header.sealed


def is_apaches(files: Files, directory: str, file_id: int) -> bool:
    """Whether Apache's bookie wrote it. Neither did if it has no header. Raises Corruption, OSError."""
    header = _header(files, directory, file_id)
    return header is not None and not header.sealed


def _header(files: Files, directory: str, file_id: int) -> fmt.Header | None:
    path = posixpath.join(directory, file_name(file_id))
    file = files.open(path)
    try:
        return fmt.decode_header(file.read_at(0, fmt.HEADER_BYTES), path)
    finally:
        file.close()


def _ends_group(file: File, header: fmt.Header, mark: Mark) -> bool:
    return fmt.ends_group(file.read_at, header, mark.file_id, mark.offset)


def _refuse_mark(file: File, mark: Mark) -> NoReturn:
    """Rule 4. Raises Corruption."""
    size_bytes = file.size_bytes()
    problem = f"it ends at {size_bytes}" if size_bytes < mark.offset else "what stands before that is not its own"
    raise Corruption(
        f"{file.path}: lastMark says that it was written up to {mark.offset}, but {problem}; restore it or take "
        "the bookie out of service"
    )


def _is_torn_header(file: File, head: bytes) -> bool:
    """Whether *head*, which has no magic, is a header torn by a crash and not the first record of version 1: a header
    is synced before anything is written after it."""
    return file.size_bytes() <= fmt.HEADER_BYTES and not fmt.begins_with_record(head)


def _holds_anything(file: File) -> bool:
    """Whether there are bytes other than zero after the header. Apache's bookie preallocates before it writes the
    header."""
    return any(any(file.read_at(at, MIB)) for at in range(fmt.HEADER_BYTES, file.size_bytes(), MIB))


def _files_from(files: Files, directory: str, mark: Mark) -> list[int]:
    ids = [file_id for file_id in list_files(files, directory) if file_id >= mark.file_id]
    if mark != fmt.START and (not ids or ids[0] != mark.file_id):
        raise Corruption(
            f"the journal file {file_name(mark.file_id)} that lastMark names is not in {directory}: entries may be "
            "missing; bring the file back or take the bookie out of service"
        )
    for earlier, later in pairwise(ids):
        if later != earlier + 1:
            raise Corruption(
                f"journal files between {file_name(earlier)} and {file_name(later)} are missing in {directory}"
            )
    return ids
