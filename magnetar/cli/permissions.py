"""`permissions`, `grant` and `revoke` of namespaces and topics: what roles may do where authorization is on."""

from typing import Final
from urllib.parse import quote

import click

from magnetar.cli.common import output as show
from magnetar.cli.common.options import done, json_option, say, topic_argument, with_admin
from magnetar.cli.tenancy import namespaces
from magnetar.cli.topics import topics
from magnetar.inspect.broker_admin import AdminClient

__all__ = ["namespaces", "topics"]

PERMISSIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")

_allow_option = click.option(
    "--allow", "permissions", multiple=True, required=True, type=click.Choice(PERMISSIONS),
    help="What ROLE may do; may be given more than once. Replaces what it was granted before.",
)  # fmt: skip


def _role(role: str) -> str:
    return quote(role, safe="")


def _subscription(name: str) -> str:
    """The name for a path, quoted twice as in the admin API: it may have `/` in it."""
    return quote(quote(name, safe=""), safe="")


def _show(granted: dict[str, list[str]], as_json: bool, head: tuple[str, str]) -> None:
    rows = [(name, ", ".join(what) or "nothing") for name, what in sorted(granted.items())]
    say(granted, as_json, lambda _: show.table(head, rows))


# ------------------------------------------------------------------------------------ namespaces


@namespaces.command("permissions")
@click.argument("namespace")
@click.option("--subscriptions", is_flag=True, help="Show which roles may use subscriptions instead.")
@json_option
@with_admin
def namespace_permissions(admin: AdminClient, namespace: str, subscriptions: bool, as_json: bool) -> None:
    """Show what roles may do in NAMESPACE.

    Example:  magnetar namespaces permissions public/default
    """
    path = f"{admin.namespace_path(namespace)}/permissions"
    if subscriptions:
        _show(admin.call("GET", f"{path}/subscription"), as_json, ("subscription", "roles"))
    else:
        _show(admin.call("GET", path), as_json, ("role", "permissions"))


@namespaces.command("grant")
@click.argument("namespace")
@click.argument("role")
@_allow_option
@json_option
@with_admin
def grant_namespace(admin: AdminClient, namespace: str, role: str, permissions: tuple[str, ...], as_json: bool) -> None:
    """Grant ROLE permissions on all topics of NAMESPACE.

    Example:  magnetar namespaces grant public/default shop --allow produce --allow consume
    """
    admin.call("POST", f"{admin.namespace_path(namespace)}/permissions/{_role(role)}", list(permissions))
    done("granted", as_json, namespace=namespace, role=role, permissions=list(permissions))


@namespaces.command("revoke")
@click.argument("namespace")
@click.argument("role")
@json_option
@with_admin
def revoke_namespace(admin: AdminClient, namespace: str, role: str, as_json: bool) -> None:
    """Revoke all permissions of ROLE on NAMESPACE; those on single topics stay.

    Example:  magnetar namespaces revoke public/default shop
    """
    admin.call("DELETE", f"{admin.namespace_path(namespace)}/permissions/{_role(role)}")
    done("revoked", as_json, namespace=namespace, role=role)


@namespaces.command("grant-subscription")
@click.argument("namespace")
@click.argument("subscription")
@click.argument("roles", nargs=-1, required=True)
@json_option
@with_admin
def grant_subscription(
    admin: AdminClient, namespace: str, subscription: str, roles: tuple[str, ...], as_json: bool
) -> None:
    """Let only ROLES use SUBSCRIPTION of the topics of NAMESPACE. They need the permission consume, too.

    Example:  magnetar namespaces grant-subscription public/default billing shop
    """
    path = f"{admin.namespace_path(namespace)}/permissions/subscription/{_subscription(subscription)}"
    admin.call("POST", path, list(roles))
    done("granted", as_json, namespace=namespace, subscription=subscription, roles=list(roles))


@namespaces.command("revoke-subscription")
@click.argument("namespace")
@click.argument("subscription")
@click.argument("role")
@json_option
@with_admin
def revoke_subscription(admin: AdminClient, namespace: str, subscription: str, role: str, as_json: bool) -> None:
    """Take ROLE from those that may use SUBSCRIPTION. When the last one is gone, all that may consume may use it.

    Example:  magnetar namespaces revoke-subscription public/default billing shop
    """
    path = f"{admin.namespace_path(namespace)}/permissions/{_subscription(subscription)}/{_role(role)}"
    admin.call("DELETE", path)
    done("revoked", as_json, namespace=namespace, subscription=subscription, role=role)


# ---------------------------------------------------------------------------------------- topics


@topics.command("permissions")
@topic_argument
@json_option
@with_admin
def topic_permissions(admin: AdminClient, topic: str, as_json: bool) -> None:
    """Show what roles may do with TOPIC, those with permissions on its namespace included.

    Example:  magnetar topics permissions orders
    """
    _show(admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/permissions"), as_json, ("role", "permissions"))


@topics.command("grant")
@topic_argument
@click.argument("role")
@_allow_option
@json_option
@with_admin
def grant_topic(admin: AdminClient, topic: str, role: str, permissions: tuple[str, ...], as_json: bool) -> None:
    """Grant ROLE permissions on TOPIC and its partitions.

    Example:  magnetar topics grant orders shop --allow produce
    """
    admin.call("POST", f"/admin/v2/{admin.path_of(topic)}/permissions/{_role(role)}", list(permissions))
    done("granted", as_json, topic=topic, role=role, permissions=list(permissions))


@topics.command("revoke")
@topic_argument
@click.argument("role")
@json_option
@with_admin
def revoke_topic(admin: AdminClient, topic: str, role: str, as_json: bool) -> None:
    """Revoke the permissions of ROLE on TOPIC; those on its namespace stay.

    Example:  magnetar topics revoke orders shop
    """
    admin.call("DELETE", f"/admin/v2/{admin.path_of(topic)}/permissions/{_role(role)}")
    done("revoked", as_json, topic=topic, role=role)
