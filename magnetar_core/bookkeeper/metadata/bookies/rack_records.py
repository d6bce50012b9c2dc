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
"""Group → bookie → its entry."""


class RackRecord(NamedTuple):
    """The node as it was read."""

    groups: RackGroups
    problems: tuple[str, ...] = ()
    """The parts that could not be understood, and do not count."""

    @property
    def racks(self) -> dict[str, str]:
        """Bookie → rack, for the bookies that have one."""
        racks = {}
        for bookies in self.groups.values():
            for bookie, entry in bookies.items():
                rack = normal_rack(entry.get("rack"))
                if rack is not None:
                    racks[bookie] = rack
        return racks


def decode_racks(value: bytes) -> RackRecord:
    """Raises Corruption where nothing can be read; an entry that makes no sense is a problem of the record."""
    if not value.strip():
        return RackRecord({})
    try:
        parsed = parse_json(value)
    except ValueError as error:
        raise Corruption(f"/bookies, the racks of the bookies: {error}") from error
    if not isinstance(parsed, dict):
        raise Corruption(f"/bookies, the racks of the bookies: a JSON object is expected, found {value[:60]!r}")
    groups: RackGroups = {}
    problems = []
    for group, bookies in parsed.items():
        if not isinstance(bookies, dict):
            problems.append(f"/bookies: group {group!r} is not an object and does not count")
            continue
        groups[group] = {}
        for bookie, entry in bookies.items():
            rack = entry.get("rack") if isinstance(entry, dict) else entry
            if not isinstance(entry, dict) or not isinstance(rack, str | None):
                problems.append(f"/bookies: the entry of {bookie!r} in group {group!r} makes no sense: {entry!r:.100}")
            else:
                groups[group][bookie] = entry
    return RackRecord(groups, tuple(problems))


def encode_racks(groups: RackGroups) -> bytes:
    """The value of the node, with groups and bookies in order, as Apache writes them."""
    ordered = {group: dict(sorted(bookies.items())) for group, bookies in sorted(groups.items())}
    return json.dumps(ordered, separators=(",", ":")).encode()


def normal_rack(rack: object) -> str | None:
    """The name of a rack with one slash before it and none behind; None where it names none."""
    name = rack.strip().strip("/") if isinstance(rack, str) else ""
    return f"/{name}" if name else None


def entry_of(groups: RackGroups, bookie: str) -> dict[str, Any] | None:
    """The entry of *bookie*; None if no group has one."""
    return next((bookies[bookie] for bookies in groups.values() if bookie in bookies), None)


def with_entry(groups: RackGroups, group: str, bookie: str, entry: Mapping[str, Any]) -> RackGroups:
    """The groups with *bookie* in *group*, and in no other."""
    changed = without_entry(groups, bookie) if entry_of(groups, bookie) is not None else groups
    return {**changed, group: {**changed.get(group, {}), bookie: dict(entry)}}


def without_entry(groups: RackGroups, bookie: str) -> RackGroups:
    """The groups without *bookie*, and without a group that had nobody else."""
    left = {}
    for group, bookies in groups.items():
        others = {name: entry for name, entry in bookies.items() if name != bookie}
        if others or bookie not in bookies:
            left[group] = others
    return left


def racks_of(racks: Mapping[str, str], hosts: Mapping[str, str]) -> dict[str, str]:
    """Bookie → rack for the bookies in *hosts* (bookie → host).

    A bookie without an entry is in the rack of the others on its host, as in Apache's mapping (which looks at hosts
    only). Where these differ it has no rack.
    """
    by_host: dict[str, set[str]] = {}
    for bookie, rack in racks.items():
        host = hosts.get(bookie) or _host_in(bookie)
        by_host.setdefault(host, set()).add(rack)
    by_bookie = {}
    for bookie, host in hosts.items():
        host_racks = by_host.get(host, set())
        if bookie in racks:
            by_bookie[bookie] = racks[bookie]
        elif len(host_racks) == 1:
            by_bookie[bookie] = next(iter(host_racks))
    return by_bookie


def _host_in(bookie: str) -> str:
    host, separator, port = bookie.rpartition(":")
    return (host if separator and port.isdigit() else bookie).lower()
