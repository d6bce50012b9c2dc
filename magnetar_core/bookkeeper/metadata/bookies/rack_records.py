"""The node `/bookies`: which bookie stands in which rack, as `pulsar-admin bookies set-bookie-rack` writes it. No IO.

    {"<group>": {"<bookie>": {"rack": "/rack-1", "hostname": "node-1"}}}

Groups keep namespaces apart (`magnetar_core.bookkeeper.client.placing.isolation`). What an entry holds besides is kept
when the node is written again.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import Corruption

RackGroups: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""Group → bookie → what is told of it."""


class RackRecord(NamedTuple):
    """The node as it was read."""

    groups: RackGroups
    problems: tuple[str, ...] = ()
    """What could not be understood, and does not count."""

    @property
    def racks(self) -> dict[str, str]:
        """Bookie → rack; without those that have none."""
        found = {}
        for bookies in self.groups.values():
            for bookie, told in bookies.items():
                rack = normal_rack(told.get("rack"))
                if rack is not None:
                    found[bookie] = rack
        return found


def decode_racks(value: bytes) -> RackRecord:
    """Raises Corruption where nothing can be read; an entry that makes no sense is a problem of the record."""
    if not value.strip():
        return RackRecord({})
    try:
        found = parse_json(value)
    except ValueError as error:
        raise Corruption(f"/bookies, the racks of the bookies: {error}") from error
    if not isinstance(found, dict):
        raise Corruption(f"/bookies, the racks of the bookies: a JSON object is expected, found {value[:60]!r}")
    groups: RackGroups = {}
    problems = []
    for group, bookies in found.items():
        if not isinstance(bookies, dict):
            problems.append(f"/bookies: group {group!r} is no object and does not count")
            continue
        groups[group] = {}
        for bookie, told in bookies.items():
            rack = told.get("rack") if isinstance(told, dict) else told
            if not isinstance(told, dict) or not isinstance(rack, str | None):
                problems.append(f"/bookies: the entry of {bookie!r} in group {group!r} makes no sense: {told!r:.100}")
            else:
                groups[group][bookie] = told
    return RackRecord(groups, tuple(problems))


def encode_racks(groups: RackGroups) -> bytes:
    """With groups and bookies in order, as Apache's."""
    ordered = {group: dict(sorted(bookies.items())) for group, bookies in sorted(groups.items())}
    return json.dumps(ordered, separators=(",", ":")).encode()


def normal_rack(rack: object) -> str | None:
    """The name of a rack with one slash before it and none behind; None where it names none."""
    name = rack.strip().strip("/") if isinstance(rack, str) else ""
    return f"/{name}" if name else None


def entry_of(groups: RackGroups, bookie: str) -> dict[str, Any] | None:
    """What is told of *bookie*."""
    return next((bookies[bookie] for bookies in groups.values() if bookie in bookies), None)


def with_entry(groups: RackGroups, group: str, bookie: str, told: Mapping[str, Any]) -> RackGroups:
    """The groups with *bookie* in *group*, and in no other."""
    changed = without_entry(groups, bookie) if entry_of(groups, bookie) is not None else groups
    return {**changed, group: {**changed.get(group, {}), bookie: dict(told)}}


def without_entry(groups: RackGroups, bookie: str) -> RackGroups:
    """The groups without *bookie*, and without a group that had nobody else."""
    left = {}
    for group, bookies in groups.items():
        others = {name: told for name, told in bookies.items() if name != bookie}
        if others or bookie not in bookies:
            left[group] = others
    return left


def racks_of(racks: Mapping[str, str], hosts: Mapping[str, str]) -> dict[str, str]:
    """Bookie → rack for the bookies in *hosts* (bookie → host).

    A bookie of which nothing is told is in the rack of the others on its host, as Apache's mapping has it (which looks
    at hosts only); where these differ nobody can say.
    """
    by_host: dict[str, set[str]] = {}
    for bookie, rack in racks.items():
        host = hosts.get(bookie) or _host_in(bookie)
        by_host.setdefault(host, set()).add(rack)
    found = {}
    for bookie, host in hosts.items():
        told = by_host.get(host, set())
        if bookie in racks:
            found[bookie] = racks[bookie]
        elif len(told) == 1:
            found[bookie] = next(iter(told))
    return found


def _host_in(bookie: str) -> str:
    host, separator, port = bookie.rpartition(":")
    return (host if separator and port.isdigit() else bookie).lower()
