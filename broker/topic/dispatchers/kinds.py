"""The types of subscriptions: who may have which, and who fits whom. No IO."""

from typing import Final, NamedTuple

from broker.errors import ConsumerBusy, NotAllowed
from broker.wire import pulsar_pb2 as wire

SINGLE_ACTIVE: Final = frozenset({wire.CommandSubscribe.Exclusive, wire.CommandSubscribe.Failover})


class DispatchedTopic(NamedTuple):
    """A topic, as its subscriptions share out what is in it."""

    name: str
    partition: int = -1
    consistent_hashing: bool = True
    """Key_Shared: consumers have so many points each on a ring of hashes; else ranges of hashes are halved."""
    points: int = 100


class KeySharedPolicy(NamedTuple):
    """How a Key_Shared consumer wants the keys to be distributed."""

    is_sticky: bool = False
    allows_out_of_order: bool = False


def name_of(kind: int | None) -> str:
    """The name of a type; empty where no consumer has come yet."""
    return "" if kind is None else wire.CommandSubscribe.SubType.Name(kind)


def check_type(kind: int, allowed: frozenset[str], *, read_compacted: bool) -> None:
    """Raises NotAllowed for a subscription type that the namespace or this broker does not allow."""
    if allowed and name_of(kind) not in allowed:
        raise NotAllowed(
            f"Subscription type {name_of(kind)} is not enabled for this namespace",
            way_out=f"use {' or '.join(sorted(allowed))}, or change the policy subscriptionTypesEnabled",
        )
    if read_compacted and kind not in SINGLE_ACTIVE:
        raise NotAllowed("readCompacted only allowed on failover or exclusive subscriptions")


def ways_for_several(allowed: frozenset[str]) -> str:
    """What a consumer can do where another one has all messages for itself; *allowed*: types, none: all of them."""
    names = (
        name_of(kind) for kind in wire.CommandSubscribe.SubType.values() if kind != wire.CommandSubscribe.Exclusive
    )
    ways = [name for name in names if not allowed or name in allowed]
    others = f", or let both use the type {' or '.join(ways)}" if ways else ""
    return f"close the other consumer{others}"


def check_fits(kind: int, policy: KeySharedPolicy, present: int | None, shared_by: KeySharedPolicy | None) -> None:
    """Raises ConsumerBusy unless a consumer of the type *kind* fits those that are there, which are *present*, and
    distribute their keys as *shared_by* says."""
    if kind != present:
        raise ConsumerBusy(
            f"Subscription is of different type. Active subscription type of '{name_of(present)}' is different "
            f"than the connecting consumer's type '{name_of(kind)}'.",
            way_out=f"use the type {name_of(present)}, or close the consumers that have it",
        )
    if shared_by is not None and shared_by != policy:
        raise ConsumerBusy(
            "The connected consumers share out their keys in another way",
            way_out="give sticky ranges, and allow deliveries out of order, as they do; or close them",
        )
