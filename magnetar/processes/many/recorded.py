"""How many bookies work in the directories of a service: a file beside their cookies.

    DIR/magnetar-processes     in every journal and ledger directory: the number, as text

Rules:

1. The number is stored before a bookie is started that is not in it.
2. Fewer bookies than recorded are started only when each of the others has no data any more: it was never started, it
   is drained, or it was removed from the cluster. What it stored would otherwise lack a copy.
"""

import posixpath
from collections.abc import Sequence
from typing import Final

from bookie.config import BookieConfig
from bookie.disks.cookie import decode
from bookie.disks.directories import CURRENT, VERSION
from magnetar.processes.many.shares import directory_of
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, cookie_path
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import State
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.config import PROCESSES
from magnetar_core.runtime.files import Files, read_file, replace_file
from magnetar_core.runtime.types import ConfigurationError, Corruption

FILE: Final = "magnetar-processes"


def recorded_processes(files: Files, config: BookieConfig) -> int:
    """The number in the directories, the greatest if they differ; 1 if it is in none of them. Raises Corruption."""
    processes = 1
    for directory in _directories(config):
        path = posixpath.join(directory, FILE)
        if files.exists(path):
            text = read_file(files, path)
            try:
                processes = max(processes, int(text))
            except ValueError:
                raise Corruption(f"{path} holds no number of processes: {text[:40]!r}") from None
    return processes


def record_processes(files: Files, config: BookieConfig, processes: int) -> None:
    """Store the number (rule 1). Raises OSError."""
    for directory in _directories(config):
        files.make_directories(directory)
        replace_file(files, posixpath.join(directory, FILE), f"{processes}\n".encode())


async def check_surplus(files: Files, config: BookieConfig, processes: int, store: MetadataStore, root: str) -> None:
    """Raises ConfigurationError where rule 2 does not let *processes* start; MetadataError, Corruption."""
    recorded = recorded_processes(files, config)
    states = BookieStates(store, root)
    surplus = []
    for number in range(processes, recorded):
        bookie = _bookie_in(files, config, number)
        if bookie is None or await store.get(cookie_path(root, bookie)) is None:
            continue
        if (await states.read(bookie)).lifecycle.state is not State.DRAINED:
            surplus.append(bookie)
    if surplus:
        raise ConfigurationError(refusal(processes, recorded, surplus))


def refusal(processes: int, recorded: int, surplus: Sequence[str]) -> str:
    """Why fewer bookies are not started, and what helps."""
    drains = "; ".join(f"`magnetar bookies drain {bookie} --wait`" for bookie in surplus)
    return (
        f"{PROCESSES}={processes}, but {recorded} bookies store entries in these directories: {', '.join(surplus)} "
        f"would be missing. Start with --processes {recorded}, copy what they have to others with {drains}, and start "
        f"with --processes {processes} when `magnetar bookies status` shows them as drained"
    )


def _bookie_in(files: Files, config: BookieConfig, number: int) -> str | None:
    """The id in the cookie of process *number*; None if it was never started. Raises Corruption."""
    for directory in _directories(config):
        path = posixpath.join(directory_of(directory, number), CURRENT, VERSION)
        if files.exists(path):
            return decode(read_file(files, path), path).bookie_id
    return None


def _directories(config: BookieConfig) -> list[str]:
    return list(dict.fromkeys(config.journal_directories + config.ledger_directories))
