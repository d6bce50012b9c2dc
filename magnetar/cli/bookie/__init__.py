"""`magnetar bookie`: runs a bookie, or shows and controls a running one through its HTTP admin.

Each subcommand is a module of this package; a few that belong together share one.
"""

import sys
from pathlib import Path

import click

from magnetar.cli.bookie.cluster import cluster
from magnetar.cli.bookie.config import config as show_config
from magnetar.cli.bookie.cookies import cookies
from magnetar.cli.bookie.info import info
from magnetar.cli.bookie.ledger import ledger
from magnetar.cli.bookie.ledgers import ledgers
from magnetar.cli.bookie.listing import list_bookies
from magnetar.cli.bookie.metrics import metrics
from magnetar.cli.bookie.readonly import readonly
from magnetar.cli.bookie.status import status
from magnetar.cli.bookie.storage.compaction import compact, resume_compaction, suspend_compaction
from magnetar.cli.bookie.storage.disks import disks
from magnetar.cli.bookie.storage.flush import flush
from magnetar.cli.bookie.storage.gc import gc
from magnetar.cli.bookie.storage.marks import marks
from magnetar.cli.bookie.storage.rebuild_index import rebuild_index
from magnetar.cli.bookie.storage.sanity import sanity
from magnetar.cli.bookie.storage.scrub import scrub
from magnetar.cli.common.options import processes_option

__all__ = ["bookie"]


@click.group(invoke_without_command=True)
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="File of name=value lines, with Apache's names."
)
@processes_option
@click.pass_context
def bookie(context: click.Context, config: Path | None, processes: str | None) -> None:
    """Run a bookie, which stores ledgers and serves BookKeeper's protocol.

    With --processes N it is a service of N bookies, each with a port and directories of its own, and one HTTP address.

    The commands below show and control a running bookie through its HTTP admin.

    Example:  magnetar bookie --config bookie.conf
    """
    if context.invoked_subcommand is not None:
        if config is not None or processes is not None:
            name = "--config" if config is not None else "--processes"
            raise click.UsageError(f"{name} runs a bookie; the commands ask one that runs, see --admin-url")
        return
    from magnetar.processes.servers import run_bookie

    sys.exit(run_bookie(config, processes))


for _command in (
    # how a bookie is
    status, info, sanity, disks, marks, show_config, metrics,
    # the cluster
    list_bookies, cluster, cookies,
    # what it does
    readonly, gc, compact, suspend_compaction, resume_compaction, flush, scrub,
    # ledgers and their index
    ledgers, ledger, rebuild_index,
):  # fmt: skip
    bookie.add_command(_command)
