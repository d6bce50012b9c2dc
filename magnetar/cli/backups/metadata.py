"""`magnetar metadata`: the records of a metadata store as a whole."""

from pathlib import Path

import click

from magnetar.cli.common import output as show
from magnetar.cli.common.chosen_cluster import ChosenCluster, OpenStore, with_cluster
from magnetar.cli.common.guesses import Guessing
from magnetar.cli.common.options import done, json_option
from magnetar.processes.backup.dump_format import DumpEnd

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(cls=Guessing)
def metadata() -> None:
    """All records of a metadata store: into a file, and from it into an empty store."""


@metadata.command("dump")
@click.argument("target", type=_FILE)
@with_cluster
@json_option
def dump_metadata(cluster: ChosenCluster, target: Path, as_json: bool) -> None:
    """Write the records of all tenants, topics, subscriptions, ledgers and bookies to the file TARGET.

    The cluster may keep running. The file does not hold the messages themselves: they stay on the bookies.

    Example:  magnetar metadata dump cluster.dump
    """
    from magnetar.processes.backup.dumping import dump, new_file

    async def ask(opened: OpenStore) -> DumpEnd:
        return await dump(opened.store, opened.root, file.write, opened.clock.wall_ms(), progress_bar.update)

    with show.bar("records") as progress_bar, new_file(target) as file:
        end = cluster.on_store(ask)
    done(
        f"{end.nodes} records are in {target}; the next ledger is {end.next_ledger}", as_json, file=str(target),
        records=end.nodes, next_ledger=end.next_ledger,
    )  # fmt: skip


@metadata.command("restore")
@click.argument("source", type=_FILE)
@with_cluster
@json_option
def restore_metadata(cluster: ChosenCluster, source: Path, as_json: bool) -> None:
    """Put the records of the file SOURCE into a metadata store that is empty, before any server is started.

    Example:  magnetar metadata restore cluster.dump --metadata zk:127.0.0.1:2181
    """
    from magnetar.processes.backup.dumping import put_back

    with show.bar("records") as progress_bar:
        end = cluster.on_store(lambda opened: put_back(opened.store, source, progress_bar.update), changes=True)
    done(
        f"{end.nodes} records were put back; the next ledger is {end.next_ledger} or above. Start the bookies, then "
        "the brokers", as_json, records=end.nodes, next_ledger=end.next_ledger,
    )  # fmt: skip


@metadata.command("adopt")
@click.argument("versions", nargs=-1, required=True, type=_FILE)
@with_cluster
@json_option
def adopt(cluster: ChosenCluster, versions: tuple[Path, ...], as_json: bool) -> None:
    """Make an empty metadata store that of bookies whose metadata are gone: VERSIONS are the files VERSION of each.

    The bookies start then, and keep everything. `magnetar ledgers strays` lists what they have, and `magnetar ledgers
    restore` gives ledgers their records and topics again.

    Example:  magnetar metadata adopt /var/lib/magnetar/ledgers/current/VERSION
    """
    from magnetar.processes.backup.dumping import adopt_bookies

    cookies = cluster.on_store(lambda opened: adopt_bookies(opened.store, opened.root, list(versions)), changes=True)
    names = sorted(cookie.bookie_id for cookie in cookies)
    done(f"the metadata store knows {', '.join(names)} of cluster {cookies[0].instance_id} now", as_json, bookies=names)
