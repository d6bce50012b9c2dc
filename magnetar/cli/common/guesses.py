"""Names that users of pulsar-admin, rpk or kubectl type: other names of our commands, and hints where to find the rest.
No IO.

A name that means one of our commands runs that command. A name of something that is done in another way, or that does
not exist here, is answered with a hint; the tests type every command that a hint names.
"""

from collections.abc import Mapping
from typing import Final

import click

_TTL: Final = (
    "`magnetar namespaces set-policy NAMESPACE messageTTL 3600` lets messages expire by age, "
    "`magnetar subscriptions expire TOPIC NAME 3600` at once"
)
_SKIP: Final = "write `magnetar subscriptions skip TOPIC NAME 10`"
_PEEK: Final = (
    "`magnetar topics peek TOPIC NAME` shows what a subscription has before it, `magnetar read TOPIC -n 10` and "
    "`magnetar tail TOPIC -n 10` messages of the topic; none acknowledges any"
)
_NO_OFFLOAD: Final = "ledgers are not offloaded here"
_POLICY: Final = (
    "`magnetar namespaces set-policy NAMESPACE POLICY VALUE` sets policies, by their names in the admin API"
)

_QUOTA: Final = (
    "`magnetar namespaces set-policy NAMESPACE backlogQuota VALUE` sets that of a namespace, "
    "`magnetar topics set-policy TOPIC backlogQuota VALUE` that of a topic; VALUE is JSON, as "
    '{"limitSize": 1000000000, "policy": "producer_request_hold"}'
)
_CLIENTS: Final = (
    "`magnetar topics clients TOPIC` shows who is connected: producers, and consumers of each subscription"
)

ALIASES: Final[Mapping[str, Mapping[str, str]]] = {
    "": {
        "topic": "topics",
        "subscription": "subscriptions",
        "namespace": "namespaces",
        "tenant": "tenants",
        "schema": "schemas",
        "ledger": "ledgers",
        "publish": "produce",
        "cat": "read",
    },
    "topics": {
        "describe": "stats",
        "show": "stats",
        "get": "stats",
        "info": "stats",
        "partitioned-stats": "stats",
        "stats-internal": "ledgers",
        "internal-stats": "ledgers",
        "last-message-id": "last-id",
        "peek-messages": "peek",
        "get-message-by-id": "get-message",
        "examine-messages": "examine",
        "analyze-subscription-backlog": "analyze-backlog",
        "update-partitioned-topic": "set-partitions",
        "add-partitions": "set-partitions",
        "connections": "clients",
        "consumers": "clients",
        "producers": "clients",
        "list-partitioned-topics": "list",
        "ls": "list",
        "delete-partitioned-topic": "delete",
        "grant-permission": "grant",
        "grant-permissions": "grant",
        "revoke-permission": "revoke",
        "revoke-permissions": "revoke",
        "remove": "delete",
        "rm": "delete",
    },
    "subscriptions": {
        "reset-cursor": "seek",
        "reset": "seek",
        "skip-all": "clear",
        "clear-backlog": "clear",
        "expire-messages": "expire",
        "skip-messages": "skip",
        "get-properties": "properties",
        "update-properties": "properties",
        "unsubscribe": "delete",
        "remove": "delete",
        "rm": "delete",
        "ls": "list",
    },
    "namespaces": {
        "policies": "show",
        "grant-permission": "grant",
        "revoke-permission": "revoke",
        "grant-subscription-permission": "grant-subscription",
        "revoke-subscription-permission": "revoke-subscription",
        "describe": "show",
        "get": "show",
        "ls": "list",
        "remove": "delete",
        "rm": "delete",
    },
    "tenants": {"describe": "show", "get": "show", "ls": "list", "remove": "delete", "rm": "delete"},
    "schemas": {"describe": "show", "get": "show", "ls": "list", "register": "upload", "remove": "delete"},
    "brokers": {
        "healthcheck": "health",
        "status": "health",
        "ls": "list",
        "get-runtime-config": "config",
        "monitoring-metrics": "metrics",
    },
    "bookies": {"list-bookies": "list", "ls": "list"},
    "ledgers": {"describe": "show", "get": "show", "ls": "list"},
    "cluster": {"start": "up", "stop": "down", "info": "status"},
}
"""Group → what is typed → our command; the group "" is `magnetar` itself."""

HINTS: Final[Mapping[str, Mapping[str, str]]] = {
    "": {
        "status": "`magnetar doctor` says how a cluster is, `magnetar brokers health` how a broker is, "
        "`magnetar bookie status` how a bookie is, `magnetar cluster status` what runs of `magnetar cluster up`",
        "health": "`magnetar doctor` looks at a whole cluster, `magnetar brokers health` at one broker",
        "get": "the thing comes first: `magnetar topics list`, `magnetar namespaces show public/default`",
        "describe": "the thing comes first: `magnetar topics stats TOPIC`, `magnetar ledgers show 0`",
        "list": "the thing comes first: `magnetar topics list`, `magnetar brokers list`",
        "create": "the thing comes first: `magnetar topics create TOPIC`",
        "delete": "the thing comes first: `magnetar topics delete TOPIC`",
        "logs": "servers write to standard error; those of `magnetar cluster up` into files, which "
        "`magnetar cluster status` names",
        "peek": _PEEK,
        "group": "a group is a subscription here: `magnetar subscriptions list TOPIC`, `magnetar lag TOPIC`",
        "clusters": "replication between clusters is not there; `magnetar cluster status` shows the one that "
        "`magnetar cluster up` started",
        "clients": _CLIENTS,
        "consumers": _CLIENTS,
        "producers": _CLIENTS,
        "connections": _CLIENTS,
        "functions": "functions are not there; run a functions worker beside the broker",
    },
    "topics": {
        "create-partitioned-topic": "write `magnetar topics create TOPIC --partitions 3`",
        "get-partitioned-topic-metadata": "`magnetar topics list` shows how many partitions topics have",
        "skip": _SKIP,
        "skip-all": "write `magnetar subscriptions clear TOPIC NAME`",
        "clear-backlog": "write `magnetar subscriptions clear TOPIC NAME`",
        "reset-cursor": "write `magnetar subscriptions seek TOPIC NAME PLACE`",
        "subscriptions": "write `magnetar subscriptions list TOPIC`",
        "create-subscription": "write `magnetar subscriptions create TOPIC NAME`",
        "unsubscribe": "write `magnetar subscriptions delete TOPIC NAME`",
        "produce": "write `magnetar produce TOPIC -m hello`",
        "consume": "write `magnetar consume TOPIC -s NAME`",
        "expire-messages": _TTL,
        "set-message-ttl": _TTL,
        "get-message-ttl": _TTL,
        "set-retention": "`magnetar namespaces set-retention NAMESPACE --minutes N` sets that of a namespace, "
        "the admin API that of one topic (`retention`)",
        "set-backlog-quota": _QUOTA,
        "compaction-status": "`compact --wait` tells how it ended",
        "offload": _NO_OFFLOAD,
        "offload-status": _NO_OFFLOAD,
    },
    "subscriptions": {
        "peek": _PEEK,
        "peek-messages": _PEEK,
        "describe": "`magnetar lag TOPIC` and `magnetar topics stats TOPIC` show how subscriptions are",
        "show": "`magnetar lag TOPIC` and `magnetar topics stats TOPIC` show how subscriptions are",
        "get": "`magnetar lag TOPIC` and `magnetar topics stats TOPIC` show how subscriptions are",
        "stats": "`magnetar lag TOPIC` and `magnetar topics stats TOPIC` show how subscriptions are",
        "clients": _CLIENTS,
        "consumers": _CLIENTS,
    },
    "namespaces": {
        "topics": "write `magnetar topics list NAMESPACE`",
        "set-message-ttl": _TTL,
        "get-message-ttl": _TTL,
        "remove-message-ttl": _TTL,
        "get-retention": "write `magnetar namespaces get-policy NAMESPACE retention`",
        "remove-retention": "write `magnetar namespaces set-policy NAMESPACE retention null`",
        "set-deduplication": "write `magnetar namespaces set-policy NAMESPACE deduplication true`",
        "set-persistence": _POLICY,
        "set-backlog-quota": _QUOTA,
        "get-backlog-quotas": "write `magnetar namespaces get-policy NAMESPACE backlogQuota`",
        "set-schema-compatibility-strategy": _POLICY,
    },
    "schemas": {"compatibility": "write `magnetar schemas upload TOPIC FILE --check`"},
    "brokers": {
        "leader-broker": "`magnetar brokers list` marks the leader",
        "leader": "`magnetar brokers list` marks the leader",
        "version": "`magnetar --version` is that of this command",
    },
    "ledgers": {"delete": "write `magnetar bookie ledger delete 7`"},
    "bookies": {"decommission": "write `magnetar bookies drain BOOKIE --wait`, then `remove`"},
    "cluster": {
        "health": "write `magnetar doctor`",
        "logs": "`magnetar cluster status` names the files",
        "create": "write `magnetar cluster up`",
        "delete": "write `magnetar cluster down`, and remove its folder",
    },
}
"""Group → what is typed → what to do instead."""


class Guessing(click.Group):
    """A group that understands other names of its commands."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self.meant(ctx, cmd_name))

    def meant(self, ctx: click.Context, name: str) -> str:
        """Our name of the command that was typed as *name*."""
        return ALIASES.get(self._own_name(ctx), {}).get(name, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        hint = HINTS.get(self._own_name(ctx), {}).get(args[0]) if args else None
        if hint is not None and not ctx.resilient_parsing:
            raise click.UsageError(f"there is no command {args[0]!r}: {hint}.", ctx)
        return super().resolve_command(ctx, args)

    def _own_name(self, ctx: click.Context) -> str:
        """The command, by whichever of its names was typed."""
        return "" if ctx.parent is None else self.name or ""
