"""`magnetar bookie`: runs a bookie, or shows and controls a running one through its HTTP admin.

Each subcommand is a module of this package; a few that belong together share one.
"""

import sys
from pathlib import Path

import click

from magnetar.cli.common.later import Later, LaterGroup
from magnetar.cli.common.options import config_option, moved_option, processes_option

_HERE = "magnetar.cli.bookie"

COMMANDS = (
    # how a bookie is
    Later("status", f"{_HERE}.status:status", "Show the state of the bookie and of its components."),
    Later("info", f"{_HERE}.overview:info", "Show free and total space of the bookie's ledger directories."),
    Later("sanity", f"{_HERE}.overview:sanity",
          "Check the bookie: it writes and reads a little in each directory."),
    Later("disks", f"{_HERE}.overview:disks",
          "Show the directories of the bookie, their usage and their content."),
    Later("marks", f"{_HERE}.overview:marks",
          "Show up to where each journal has been flushed to the ledger storage (last log mark)."),
    Later("config", f"{_HERE}.overview:config", "Show the effective settings of the bookie."),
    Later("metrics", f"{_HERE}.overview:metrics", "Show the metrics of the bookie in the format of Prometheus."),
    # the cluster
    Later("list", f"{_HERE}.overview:list_bookies", "List the available bookies of the cluster."),
    Later("cluster", f"{_HERE}.cluster:cluster",
          "Show the cluster: its bookies, which of them do not answer, the auditor, missing copies, drains."),
    Later("cookies", f"{_HERE}.overview:cookies", "Show which directories belong to which bookie of the cluster."),
    # what it does
    Later("readonly", f"{_HERE}.readonly:readonly", "Make the bookie read-only (on) or writable (off)."),
    Later("gc", f"{_HERE}.storage.gc:gc", "Show the state of garbage collection."),
    Later("compact", f"{_HERE}.storage.compaction:compact", "Compact entry logs or the index now."),
    Later("suspend-compaction", f"{_HERE}.storage.compaction:suspend_compaction",
          "Suspend compaction of entry logs until it is resumed or the bookie restarts."),
    Later("resume-compaction", f"{_HERE}.storage.compaction:resume_compaction", "Resume compaction of entry logs."),
    Later("flush", f"{_HERE}.storage.compaction:flush", "Flush the write cache to entry logs now."),
    Later("scrub", f"{_HERE}.storage.scrub:scrub", "Show the state of the check of all entries on the disks."),
    # ledgers and their index
    Later("ledgers", f"{_HERE}.ledgers:ledgers", "List the ledgers of the cluster."),
    Later("ledger", f"{_HERE}.ledger:ledger", "Show, read or delete one ledger of the cluster."),
    Later("rebuild-index", f"{_HERE}.storage.rebuild_index:rebuild_index",
          "Rebuild the index from the entry logs, if entries are missing from it or their locations are wrong."),
)  # fmt: skip


@click.group(cls=LaterGroup, later=COMMANDS, invoke_without_command=True)
@config_option
@processes_option
@moved_option
@click.pass_context
def bookie(context: click.Context, config: Path | None, processes: str | None, moved: bool) -> None:
    """Run a bookie, which stores ledgers and serves BookKeeper's protocol.

    With --processes N it is a service of N bookies, each with a port and directories of its own, and one HTTP address.

    The commands below show and control a running bookie through its HTTP admin.

    Example:  magnetar bookie --config bookie.conf
    """
    if context.invoked_subcommand is not None:
        if config is not None or processes is not None or moved:
            name = "--config" if config is not None else "--processes" if processes is not None else "--moved"
            raise click.UsageError(f"{name} runs a bookie; the commands ask one that runs, see --admin-url")
        return
    from magnetar.processes.servers import run_bookie

    sys.exit(run_bookie(config, processes, is_moved=moved))
