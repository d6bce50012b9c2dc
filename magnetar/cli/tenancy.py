"""`magnetar tenants`, `namespaces`, `schemas` and `brokers`."""

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from broker.policies.namespace import WRITES, WRITES_STOPPED
from magnetar.cli.common import output as show
from magnetar.cli.common.guesses import Guessing
from magnetar.cli.common.options import (
    confirm,
    done,
    json_option,
    now_ms,
    policy_value,
    print_json,
    say,
    topic_argument,
    with_admin,
    yes_option,
)
from magnetar.cli.common.policies import PolicyCommand, read_name
from magnetar.inspect.broker_admin import AdminClient, AdminError
from magnetar_core.runtime.data.json_text import parse_json

_V2 = "/admin/v2"


def _show_facts(facts: dict[str, Any]) -> None:
    rows = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in sorted(facts.items())]
    show.values(rows or [("", "nothing is set")])


# --------------------------------------------------------------------------------------- tenants


@click.group(cls=Guessing)
def tenants() -> None:
    """List, show, create and delete tenants."""


@tenants.command("list")
@json_option
@with_admin
def list_tenants(admin: AdminClient, as_json: bool) -> None:
    """List the tenants.

    Example:  magnetar tenants list
    """
    say(sorted(admin.call("GET", f"{_V2}/tenants")), as_json, show.lines)


@tenants.command("show")
@click.argument("tenant")
@json_option
@with_admin
def show_tenant(admin: AdminClient, tenant: str, as_json: bool) -> None:
    """Show the admin roles of TENANT and the clusters that it may use.

    Example:  magnetar tenants show public
    """
    say(admin.call("GET", f"{_V2}/tenants/{quote(tenant, safe='')}"), as_json, _show_facts)


@tenants.command("create")
@click.argument("tenant")
@click.option("--admin-role", "roles", multiple=True,
              help="A role that may administer the tenant; may be given more than once.")  # fmt: skip
@click.option("--cluster", "clusters", multiple=True,
              help="A cluster that the tenant may use; may be given more than once. Default: all known.")  # fmt: skip
@json_option
@with_admin
def create_tenant(
    admin: AdminClient, tenant: str, roles: tuple[str, ...], clusters: tuple[str, ...], as_json: bool
) -> None:
    """Create TENANT.

    Example:  magnetar tenants create shop
    """
    allowed = list(clusters) or admin.call("GET", f"{_V2}/clusters")
    body = {"adminRoles": list(roles), "allowedClusters": allowed}
    admin.call("PUT", f"{_V2}/tenants/{quote(tenant, safe='')}", body)
    done("created", as_json, tenant=tenant, **body)


@tenants.command("update")
@click.argument("tenant")
@click.option("--admin-role", "roles", multiple=True,
              help="A role that may administer the tenant; may be given more than once. Replaces the roles of before; "
                   "without one, only super users may.")  # fmt: skip
@json_option
@with_admin
def update_tenant(admin: AdminClient, tenant: str, roles: tuple[str, ...], as_json: bool) -> None:
    """Set the roles that may administer TENANT.

    Example:  magnetar tenants update public --admin-role operations
    """
    path = f"{_V2}/tenants/{quote(tenant, safe='')}"
    body = {"adminRoles": list(roles), "allowedClusters": admin.call("GET", path)["allowedClusters"]}
    admin.call("POST", path, body)
    done("set", as_json, tenant=tenant, **body)


@tenants.command("delete")
@click.argument("tenant")
@yes_option
@json_option
@with_admin
def delete_tenant(admin: AdminClient, tenant: str, yes: bool, as_json: bool) -> None:
    """Delete TENANT, which must have no namespaces. Asks first, unless --yes is given.

    Example:  magnetar tenants delete shop --yes
    """
    confirm(f"Delete tenant {tenant}?", yes)
    admin.call("DELETE", f"{_V2}/tenants/{quote(tenant, safe='')}")
    done("deleted", as_json, tenant=tenant)


# ------------------------------------------------------------------------------------ namespaces


@click.group(cls=Guessing)
def namespaces() -> None:
    """List, show, create and delete namespaces, and set their policies."""


@namespaces.command("list")
@click.argument("tenant", default="public")
@json_option
@with_admin
def list_namespaces(admin: AdminClient, tenant: str, as_json: bool) -> None:
    """List the namespaces of TENANT (public).

    Example:  magnetar namespaces list public
    """
    say(sorted(admin.call("GET", f"{_V2}/namespaces/{quote(tenant, safe='')}")), as_json, show.lines)


@namespaces.command("show")
@click.argument("namespace")
@json_option
@with_admin
def show_namespace(admin: AdminClient, namespace: str, as_json: bool) -> None:
    """Show the policies of NAMESPACE.

    Example:  magnetar namespaces show public/default
    """
    policies = admin.call("GET", admin.namespace_path(namespace))
    if not as_json:
        policies = {name: value for name, value in policies.items() if value not in (None, {}, [], "")}
    say(policies, as_json, _show_facts)


@namespaces.command("create")
@click.argument("namespace")
@click.option("--bundles", type=click.IntRange(min=1),
              help="Number of bundles, in which brokers share topics. Default: the broker's setting.")  # fmt: skip
@json_option
@with_admin
def create_namespace(admin: AdminClient, namespace: str, bundles: int | None, as_json: bool) -> None:
    """Create NAMESPACE (tenant/namespace).

    Example:  magnetar namespaces create public/orders
    """
    body = {"bundles": {"numBundles": bundles}} if bundles else None
    admin.call("PUT", admin.namespace_path(namespace), body)
    done("created", as_json, namespace=namespace)


@namespaces.command("delete")
@click.argument("namespace")
@yes_option
@json_option
@with_admin
def delete_namespace(admin: AdminClient, namespace: str, yes: bool, as_json: bool) -> None:
    """Delete NAMESPACE, which must have no topics. Asks first, unless --yes is given.

    Example:  magnetar namespaces delete public/orders --yes
    """
    confirm(f"Delete namespace {namespace} with its policies?", yes)
    admin.call("DELETE", admin.namespace_path(namespace))
    done("deleted", as_json, namespace=namespace)


@namespaces.command("unload")
@click.argument("namespace")
@with_admin
def unload_namespace(admin: AdminClient, namespace: str) -> None:
    """Unload all topics of NAMESPACE from their brokers; the brokers assign them again at the next lookup.

    Example:  magnetar namespaces unload public/default
    """
    admin.call("PUT", admin.namespace_path(namespace) + "/unload")
    click.echo("unloaded")


@namespaces.command("get-policy", cls=PolicyCommand)
@click.argument("namespace")
@click.argument("policy")
@with_admin
def get_policy(admin: AdminClient, namespace: str, policy: str) -> None:
    """Show POLICY of NAMESPACE as JSON. POLICY is the name in the admin API.

    Example:  magnetar namespaces get-policy public/default retention
    """
    print_json(admin.call("GET", f"{admin.namespace_path(namespace)}/{quote(read_name(policy), safe='')}"))


@namespaces.command("set-policy", cls=PolicyCommand)
@click.argument("namespace")
@click.argument("policy")
@click.argument("value")
@with_admin
def set_policy(admin: AdminClient, namespace: str, policy: str, value: str) -> None:
    """Set POLICY of NAMESPACE to VALUE, which is JSON; null removes the policy.

    Example:  magnetar namespaces set-policy public/default deduplication true
    """
    body = policy_value(value)
    path = f"{admin.namespace_path(namespace)}/{quote(policy, safe='')}"
    if body is None:
        admin.call("DELETE", path)
    else:
        admin.call("POST", path, body)
    click.echo("set" if body is not None else "removed")


@namespaces.command("stop-writes")
@click.argument("namespace")
@json_option
@with_admin
def stop_writes(admin: AdminClient, namespace: str, as_json: bool) -> None:
    """Disconnect all producers of NAMESPACE, and refuse new ones, until `allow-writes`.

    Their clients wait and try again; consumers go on. Apache's brokers do not know of it: it counts where ours serve
    the namespace. Non-persistent topics go on.

    Example:  magnetar namespaces stop-writes public/default
    """
    admin.call("PUT", f"{admin.namespace_path(namespace)}/property/{WRITES}/{WRITES_STOPPED}")
    done("writes are stopped", as_json, namespace=namespace, writes="stopped")


@namespaces.command("allow-writes")
@click.argument("namespace")
@json_option
@with_admin
def allow_writes(admin: AdminClient, namespace: str, as_json: bool) -> None:
    """Let producers publish to NAMESPACE again after `stop-writes`.

    Example:  magnetar namespaces allow-writes public/default
    """
    admin.call("DELETE", f"{admin.namespace_path(namespace)}/property/{WRITES}")
    done("writes are allowed", as_json, namespace=namespace, writes="allowed")


@namespaces.command("set-retention")
@click.argument("namespace")
@click.option("--minutes", type=click.IntRange(min=-1), required=True,
              help="Minutes to keep acknowledged messages; -1: forever.")  # fmt: skip
@click.option("--megabytes", type=click.IntRange(min=-1), default=-1, show_default=True,
              help="Megabytes to keep at most; -1: no limit.")  # fmt: skip
@with_admin
def set_retention(admin: AdminClient, namespace: str, minutes: int, megabytes: int) -> None:
    """Set how long NAMESPACE keeps messages that every subscription has acknowledged.

    Example:  magnetar namespaces set-retention public/default --minutes 1440
    """
    admin.set_retention(namespace, minutes=minutes, megabytes=megabytes)
    click.echo("set")


# --------------------------------------------------------------------------------------- schemas


@click.group(cls=Guessing)
def schemas() -> None:
    """List, show, upload and delete schemas of topics."""


@schemas.command("list")
@topic_argument
@json_option
@with_admin
def list_schemas(admin: AdminClient, topic: str, as_json: bool) -> None:
    """List all versions of the schema of TOPIC.

    Example:  magnetar schemas list orders
    """
    versions = admin.call("GET", f"{admin.schema_path(topic)}/schemas")["getSchemaResponses"]
    if as_json:
        print_json(versions)
        return
    now = now_ms()
    rows = [
        (str(version["version"]), version["type"], show.age(version["timestamp"], now), _shortened(version["data"]))
        for version in versions
    ]
    show.table(("version", "type", "made", "definition"), rows)


def _shortened(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= 80 else one_line[:79] + "…"


@schemas.command("show")
@topic_argument
@click.option("--version", type=click.IntRange(min=0), help="Version to show. Default: the newest.")
@json_option
@with_admin
def show_schema(admin: AdminClient, topic: str, version: int | None, as_json: bool) -> None:
    """Show the schema of TOPIC.

    Example:  magnetar schemas show orders
    """
    schema = admin.call("GET", f"{admin.schema_path(topic)}/schema" + ("" if version is None else f"/{version}"))
    if as_json:
        print_json(schema)
        return
    click.echo(f"version {schema['version']}, {schema['type']}, made {show.age(schema['timestamp'], now_ms())}")
    try:
        click.echo(json.dumps(parse_json(schema["data"]), indent=2))
    except ValueError:
        click.echo(schema["data"])


@schemas.command("upload")
@topic_argument
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("--type", "kind", type=click.Choice(["AVRO", "JSON", "STRING", "BYTES"], case_sensitive=False),
              default="AVRO", show_default=True, help="Type of the schema.")  # fmt: skip
@click.option("--check", is_flag=True, help="Only check whether the schema is compatible. Exit code 2 if not.")
@with_admin
def upload_schema(admin: AdminClient, topic: str, file: Path, kind: str, check: bool) -> None:
    """Upload the schema in FILE to TOPIC (an Avro definition as JSON; - is standard input).

    Example:  magnetar schemas upload orders order.avsc
    """
    try:
        with click.open_file(str(file), encoding="utf-8") as source:
            definition = source.read()
    except (OSError, UnicodeDecodeError) as error:
        raise AdminError(f"cannot read {file}: {error}") from None
    body = {"type": kind.upper(), "schema": definition, "properties": {}}
    if check:
        answer = admin.call("POST", f"{admin.schema_path(topic)}/compatibility", body)
        word = "compatible" if answer["compatibility"] else "not compatible"
        click.echo(f"{word} ({answer['schemaCompatibilityStrategy']})")
        if not answer["compatibility"]:
            raise click.exceptions.Exit(2)
        return
    answer = admin.call("POST", f"{admin.schema_path(topic)}/schema", body)
    click.echo(f"version {_version(answer['version'])}")


def _version(version: Any) -> str:
    number = version["version"] if isinstance(version, dict) else version
    if isinstance(number, str):  # the eight bytes of the number
        return str(int.from_bytes(base64.b64decode(number)))
    return str(number)


@schemas.command("delete")
@topic_argument
@yes_option
@json_option
@with_admin
def delete_schema(admin: AdminClient, topic: str, yes: bool, as_json: bool) -> None:
    """Delete the schema of TOPIC. Messages keep the number of their schema version. Asks first, unless --yes is given.

    Example:  magnetar schemas delete orders --yes
    """
    confirm(f"Delete the schema of {topic}?", yes)
    admin.call("DELETE", f"{admin.schema_path(topic)}/schema")
    done("deleted", as_json, topic=topic)


# --------------------------------------------------------------------------------------- brokers


@click.group(cls=Guessing)
def brokers() -> None:
    """Inspect the brokers of the cluster."""


@brokers.command("list")
@json_option
@with_admin
def list_brokers(admin: AdminClient, as_json: bool) -> None:
    """List the active brokers and the leader among them.

    Example:  magnetar brokers list
    """
    names = sorted(admin.call("GET", f"{_V2}/brokers"))
    leader = admin.call("GET", f"{_V2}/brokers/leaderBroker").get("brokerId")
    if as_json:
        print_json([{"broker": name, "leader": name == leader} for name in names])
        return
    show.table(("broker", ""), [(name, "leader" if name == leader else "") for name in names])


@brokers.command("health")
@json_option
@with_admin
def health(admin: AdminClient, as_json: bool) -> None:
    """Check a broker: it writes a message and reads it back. Exit code 2 if that fails.

    Example:  magnetar brokers health
    """
    try:
        with show.bar("the broker writes and reads"):
            said = admin.call("GET", f"{_V2}/brokers/health")
    except AdminError as error:
        if as_json:
            print_json({"healthy": False, "reason": str(error)})
        raise
    done(said, as_json, healthy=True, reason="")


@brokers.command("config")
@click.argument("name", default="")
@json_option
@with_admin
def config(admin: AdminClient, name: str, as_json: bool) -> None:
    """Show the effective settings of a broker; with NAME, only settings whose name contains it.

    Example:  magnetar brokers config ledger
    """
    settings = admin.call("GET", f"{_V2}/brokers/configuration/runtime")
    chosen = {key: value for key, value in settings.items() if name.lower() in key.lower()}
    say(chosen, as_json, show.settings)


@brokers.command("metrics")
@with_admin
def metrics(admin: AdminClient) -> None:
    """Show the metrics of a broker in the format of Prometheus.

    Example:  magnetar brokers metrics
    """
    click.echo(str(admin.call("GET", "/metrics")), nl=False)
