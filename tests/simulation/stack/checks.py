"""What must hold in a life, whatever happens: looked at with each change of the metadata, each log line, and last.

1. A ledger that was closed stays closed, at the same entry, of the same size, with the same quorums and password.
2. No server meets an error of ours (AssertionError, TypeError, KeyError …), and no task ends with an error that nobody
   takes.
3. What was reported as lost, while bookies were away that have it, is mended at the end.
4. At the end each budget of a broker is what is in use: nothing waits, so they are empty; no ledger is marked as
   one that lacks copies, and none is locked.
5. At the end subscriptions have no backlog, and no message is at a consumer: clients have acknowledged all of them.
6. At the end a consumer may be sent what its client has asked for, no message less, and none more.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

from broker.topic.reading.subscription import Subscription
from magnetar.testing.simulated.cluster import ROOT, BrokerMachine, SimulatedCluster
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports
from magnetar_core.bookkeeper.metadata.damage.rules import Kind, Stage
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, decode, ledger_id_of
from magnetar_core.bookkeeper.metadata.stores.tree import Change
from magnetar_core.runtime.types import MagnetarError
from tests.simulation.stack.pulsar_client import Consumer

Problem = Callable[[str], None]

# What an error of the environment is; everything else is a programmer's.
_FORESEEN: Final = (MagnetarError, OSError, TimeoutError, asyncio.CancelledError)


class ClosedLedgers:
    """Rule 1."""

    def __init__(self, cluster: SimulatedCluster, problem: Problem) -> None:
        self._problem = problem
        self._closed: dict[int, LedgerMetadata] = {}
        cluster.server.root.session(self._changed)

    def _changed(self, change: Change) -> None:
        ledger_id = ledger_id_of(change.path) if change.path.startswith(ROOT) else None
        if ledger_id is None or change.record is None or not change.record.value:
            return
        metadata = decode(change.record.value)
        before = self._closed.get(ledger_id)
        if before is None:
            if metadata.is_closed:
                self._closed[ledger_id] = metadata
        elif not metadata.is_closed or _sealed(metadata) != _sealed(before):
            self._problem(f"ledger {ledger_id} was closed at {before.last_entry_id}, and then: {metadata}")


def _sealed(metadata: LedgerMetadata) -> tuple[object, ...]:
    """What never changes any more."""
    return (
        metadata.last_entry_id, metadata.length, metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum,
        metadata.digest_type, metadata.password,
    )  # fmt: skip


class OwnErrors(logging.Handler):
    """Rule 2."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(logging.WARNING)
        self._problem = problem

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, _FORESEEN):
            text = logging.Formatter().formatException((type(error), error, error.__traceback__))
            self._problem(f"{record.name}: {record.getMessage()}\n{text}")

    def on_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The exception handler of the loop."""
        error = context.get("exception")
        if error is not None and not isinstance(error, _FORESEEN):
            text = logging.Formatter().formatException((type(error), error, error.__traceback__))
            self._problem(f"{context['message']}\n{text}")


async def losses(cluster: SimulatedCluster) -> str:
    """Rule 3; empty where nothing counts as lost."""
    reports = await DamageReports(cluster.server.root, ROOT).all()
    lost = [report for report in reports if report.kind is Kind.DATA_LOSS and report.stage is not Stage.MENDED]
    return "; ".join(f"ledger {report.ledger_id} is reported as lost: {report.text}" for report in lost[:5])


def in_use(machine: BrokerMachine) -> str:
    """Rule 4, of one broker; empty where nothing is in use."""
    broker = machine.broker
    assert broker is not None
    budgets = {"publishes": broker.publishes, "reads": broker.reads, "set aside": broker.set_aside}
    for name, budget in budgets.items():
        budget_used = budget.used_bytes
        if budget_used:
            return f"{machine}: {budget_used} bytes of the budget of {name} are in use, and nothing is under way"
        if budget.waiting_count:
            return f"{machine}: {budget.waiting_count} wait for the budget of {name}, which is empty"
    return ""


def undelivered(machine: BrokerMachine, topics: Collection[str]) -> str:
    """Rule 5, of one broker and its *topics* of these names; empty where all is acknowledged."""
    for topic, subscription in _subscriptions(machine, topics):
        if subscription.backlog:
            return f"{machine}: {subscription.name} of {topic} has a backlog of {subscription.backlog}"
        if subscription.unacked_messages:
            return f"{machine}: {subscription.name} of {topic} has {subscription.unacked_messages} at consumers"
    return ""


def lost_permits(machine: BrokerMachine, clients: Iterable[Consumer], *, are_exact: bool) -> str:
    """Rule 6, of one broker; empty where its consumers have the permits that their *clients* know of. Not *are_exact*:
    they may have more, since clients ask anew for all of a batch that comes again, of which a part is acknowledged."""
    known = {(client.topic, client.subscription, client.name): client.permits for client in clients}
    for topic, subscription in _subscriptions(machine, {topic for topic, _, _ in known}):
        for consumer in subscription.consumers:
            permits = known.get((topic, subscription.name, consumer.name))
            if permits is not None and (permits > consumer.permits or (are_exact and permits < consumer.permits)):
                return (
                    f"{machine}: {consumer.name} of {subscription.name} of {topic} may be sent {consumer.permits} "
                    f"messages, and its client has asked for {permits}; there are "
                    f"{[(each.name, each.consumer_id, each.permits) for each in subscription.consumers]}"
                )
    return ""


def _subscriptions(machine: BrokerMachine, topics: Collection[str]) -> Iterator[tuple[str, Subscription]]:
    broker = machine.broker
    assert broker is not None
    for name, topic in broker.topics.items():
        if str(name) in topics:
            yield from ((str(name), subscription) for subscription in topic.subscriptions.values())
