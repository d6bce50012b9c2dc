"""`magnetar topics`, `subscriptions` and `lag`: show and change topics and subscriptions through a broker."""

import re
import threading
from typing import Any, Final
from urllib.parse import quote

import click

from magnetar.cli.backups.topic import export_topic, import_topic
from magnetar.cli.common import output as show
from magnetar.cli.common.guesses import Guessing
from magnetar.cli.common.options import (
    complete_topics,
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
from magnetar.cli.common.policies import TopicPolicyCommand, read_name
from magnetar.cli.messages import entries
from magnetar.cli.messages.places import (
    PLACE_HELP,
    create_at,
    id_of,
    json_of,
    must_be_one,
    partition_of,
    place_of,
    subscription_path,
)
from magnetar.inspect.broker_admin import AdminClient, AdminError
from magnetar_core.runtime.data.visible import visible
from magnetar_core.topics.message_id import EARLIEST, LATEST
from managed_ledger.compacted.entry import COMPACTION_CURSOR

# How often a compaction is asked for its end.
LOOK_S: Final = 0.2


@click.group(cls=Guessing)
def topics() -> None:
    """List, create, inspect and delete topics."""


@topics.command("list")
@click.argument("namespace", default="public/default")
@json_option
@with_admin
def list_topics(admin: AdminClient, namespace: str, as_json: bool) -> None:
    """List the topics of NAMESPACE (public/default).

    Example:  magnetar topics list public/default
    """
    partitioned_names, plain = admin.whole_topics(namespace)
    partitioned = {name: admin.partitions(name) for name in partitioned_names}
    if as_json:
        print_json([{"topic": name, "partitions": partitioned.get(name, 0)} for name in sorted([*partitioned, *plain])])
        return
    for name, count in partitioned.items():
        click.echo(f"{visible(name)}  ({count} partitions)")
    for name in plain:
        click.echo(visible(name))


@topics.command("create")
@topic_argument
@click.option("-p", "--partitions", type=click.IntRange(min=0), default=0, show_default=True,
              help="Number of partitions; 0 creates a topic without partitions.")  # fmt: skip
@json_option
@with_admin
def create_topic(admin: AdminClient, topic: str, partitions: int, as_json: bool) -> None:
    """Create TOPIC.

    Example:  magnetar topics create orders --partitions 4
    """
    admin.create_topic(topic, partitions)
    done("created", as_json, topic=topic, partitions=partitions)


@topics.command("set-partitions")
@topic_argument
@click.argument("partitions", type=click.IntRange(min=1))
@with_admin
def set_partitions(admin: AdminClient, topic: str, partitions: int) -> None:
    """Increase the number of partitions of TOPIC to PARTITIONS. It cannot be reduced later.

    Example:  magnetar topics set-partitions orders 8
    """
    admin.call("POST", f"/admin/v2/{admin.path_of(topic)}/partitions", partitions)
    click.echo(f"{topic} has {partitions} partitions")


@topics.command("delete")
@topic_argument
@click.option("--force", is_flag=True, help="Delete it even if producers or consumers are connected.")
@click.option("--pattern", is_flag=True,
              help="TOPIC is tenant/namespace/EXPRESSION, or an expression for names in public/default.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@yes_option
@json_option
@with_admin
def delete_topic(
    admin: AdminClient, topic: str, force: bool, pattern: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete TOPIC with all its partitions and data.

    It asks first, unless --yes or --force is given. With --pattern the topics are shown before, and --yes is needed.

    Example:  magnetar topics delete orders --yes
    """
    if pattern or dry_run:
        names = _matching(admin, topic) if pattern else [topic]
        if not as_json:
            click.echo("\n".join(map(visible, names)) or "no topic fits")
        if names and not dry_run:
            confirm(f"Delete these {len(names)} topics with all their messages and subscriptions?", yes)
            for name in names:
                admin.delete_topic(name, force=force)
        done("not deleted" if dry_run or not names else "deleted", as_json, topics=names, deleted=not dry_run)
        return
    confirm(f"Delete {topic} with all its messages and subscriptions?", yes or force)
    admin.delete_topic(topic, force=force)
    done("deleted", as_json, topic=topic)


def _matching(admin: AdminClient, text: str) -> list[str]:
    """The topics, each whole, whose names are as the expression says. Raises UsageError."""
    text = text.removeprefix("persistent://")
    parts = text.split("/", 2)
    namespace, expression = ("/".join(parts[:2]), parts[2]) if len(parts) == 3 else ("public/default", text)
    try:
        compiled = re.compile(expression)
    except re.error as error:
        raise click.UsageError(f"{expression} is not a regular expression: {error}") from None
    partitioned, plain = admin.whole_topics(namespace)
    return sorted(name for name in (*partitioned, *plain) if compiled.fullmatch(name.rsplit("/", 1)[-1]))


@topics.command("stats")
@topic_argument
@json_option
@with_admin
def topic_stats(admin: AdminClient, topic: str, as_json: bool) -> None:
    """Show the producers, subscriptions and size of TOPIC.

    Example:  magnetar topics stats orders
    """
    stats = admin.stats(topic)
    if as_json:
        print_json(stats)
        return
    click.echo(
        f"{stats['msgInCounter']} messages in, {stats['msgOutCounter']} out; "
        f"{show.size(stats['storageSize'])} stored; {len(stats['publishers'])} producers"
    )
    rows = [
        (name, sub["type"] or "-", str(sub["msgBacklog"]), str(sub["unackedMessages"]), str(len(sub["consumers"])))
        for name, sub in sorted(stats["subscriptions"].items())
    ]
    if rows:
        show.table(("subscription", "type", "backlog", "unacknowledged", "consumers"), rows)


@topics.command("ledgers")
@topic_argument
@json_option
@with_admin
def topic_ledgers(admin: AdminClient, topic: str, as_json: bool) -> None:
    """Show the ledgers and cursors of TOPIC (one partition).

    Example:  magnetar topics ledgers orders
    """
    must_be_one(admin, topic)
    stats = admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/internalStats")
    if as_json:
        print_json(stats)
        return
    last = stats["ledgers"][-1]["ledgerId"] if stats["ledgers"] else None
    rows = []
    for ledger in stats["ledgers"]:
        is_open = ledger["ledgerId"] == last and not ledger["entries"]
        entries, size = (
            (stats["currentLedgerEntries"], stats["currentLedgerSize"])
            if is_open
            else (ledger["entries"], ledger["size"])
        )
        rows.append((str(ledger["ledgerId"]), str(entries), show.size(size), "open" if is_open else "closed"))
    show.table(("ledger", "entries", "size", "state"), rows)
    click.echo(f"last confirmed {stats['lastConfirmedEntry']}")
    cursors = [
        (name, cursor["markDeletePosition"], cursor["readPosition"], cursor.get("individuallyDeletedMessages") or "[]")
        for name, cursor in sorted(stats["cursors"].items())
    ]
    if cursors:
        click.echo()
        show.table(("cursor", "acknowledged up to", "reads next", "acknowledged beyond"), cursors)


@topics.command("lookup")
@topic_argument
@json_option
@with_admin
def lookup(admin: AdminClient, topic: str, as_json: bool) -> None:
    """Show which broker serves TOPIC (each of its partitions).

    Example:  magnetar topics lookup orders
    """
    owners = {name: admin.owner_url(name) for name in admin.partition_names(topic)}
    say(owners, as_json, lambda owners: show.table(("topic", "broker"), list(owners.items())))


@topics.command("last-id")
@topic_argument
@json_option
@with_admin
def last_id(admin: AdminClient, topic: str, as_json: bool) -> None:
    """Show the id of the last message of TOPIC (one partition).

    Example:  magnetar topics last-id orders
    """
    must_be_one(admin, topic)
    answer = admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/lastMessageId")
    done(str(id_of(answer)), as_json, **answer)


@topics.command("unload")
@topic_argument
@with_admin
def unload(admin: AdminClient, topic: str) -> None:
    """Unload TOPIC from its broker; a broker loads it again at the next lookup. Clients reconnect by themselves.

    Example:  magnetar topics unload orders
    """
    for name in admin.partition_names(topic):
        admin.call("PUT", f"/admin/v2/{admin.path_of(name)}/unload")
    click.echo("unloaded")


@topics.command("move")
@topic_argument
@click.argument("broker")
@yes_option
@json_option
@with_admin
def move(admin: AdminClient, topic: str, broker: str, yes: bool, as_json: bool) -> None:
    """Move TOPIC (all its partitions) to BROKER, as `magnetar brokers list` has it.

    Brokers own bundles of topics, so other topics of its bundle go with it; it asks first, unless --yes is given. A
    balanced cluster may move it again.

    Example:  magnetar topics move orders b2.example.com:8080 --yes
    """
    brokers = admin.call("GET", "/admin/v2/brokers")
    if broker not in brokers:
        raise AdminError(f"{broker} is not a broker of this cluster: choose from {', '.join(sorted(brokers))}")
    bundles = sorted({_bundle_of(admin, name) for name in admin.partition_names(topic)})
    confirm(f"Move {topic} to {broker}, with all topics of its bundles {', '.join(bundles)}?", yes)
    for bundle in bundles:
        admin.call("PUT", f"/admin/v2/namespaces/{bundle}/unload?destinationBroker={quote(broker)}")
    done(f"moved to {broker}", as_json, topic=topic, broker=broker, bundles=bundles)


def _bundle_of(admin: AdminClient, topic: str) -> str:
    """`tenant/namespace/0x…_0x…`"""
    path = admin.path_of(topic)
    bundle = admin.call("GET", f"/lookup/v2/topic/{path}/bundle")
    return f"{'/'.join(path.split('/')[1:3])}/{bundle}"


@topics.command("clients")
@topic_argument
@json_option
@with_admin
def clients(admin: AdminClient, topic: str, as_json: bool) -> None:
    """Show who is connected to TOPIC: producers, and the consumers of each subscription.

    Example:  magnetar topics clients orders
    """
    names = admin.partition_names(topic)
    rows = [row for name in names for row in _clients_of(name, admin.stats(name))]
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo(f"nobody is connected to {visible(topic)}")
        return
    first = 0 if len(names) > 1 else 1  # the column of partitions
    heads = (
        "partition",
        "kind",
        "name",
        "subscription",
        "address",
        "since",
        "client",
        "messages a second",
        "waits for",
    )
    show.table(
        heads[first:],
        [
            (row["topic"].rpartition("-")[2], row["kind"], visible(row["name"]), visible(row["subscription"]) or "-",
             row["address"], row["since"], visible(row["client"]) or "-", f"{row['rate']:.1f}",
             str(row["permits"]))[first:]
            for row in rows
        ],
    )  # fmt: skip


def _clients_of(topic: str, stats: dict[str, Any]) -> list[dict[str, Any]]:
    """The clients of one topic without partitions; `permits`: messages that a consumer may still be sent."""

    def row(kind: str, subscription: str, facts: dict[str, Any], name: str, rate: str) -> dict[str, Any]:
        return {
            "topic": topic,
            "kind": kind,
            "subscription": subscription,
            "name": facts.get(name) or "",
            "address": facts.get("address") or "",
            "since": facts.get("connectedSince") or "",
            "client": facts.get("clientVersion") or "",
            "rate": facts[rate],
            "permits": facts.get("availablePermits", 0),
        }

    producers = [row("producer", "", facts, "producerName", "msgRateIn") for facts in stats["publishers"]]
    consumers = [
        row("consumer", name, facts, "consumerName", "msgRateOut")
        for name, subscription in sorted(stats["subscriptions"].items())
        for facts in subscription["consumers"]
    ]
    return producers + consumers


@topics.command("get-policy", cls=TopicPolicyCommand)
@topic_argument
@click.argument("policy")
@click.option("--applied", is_flag=True, help="What is in force: own, else the namespace's, else the setting.")
@with_admin
def get_policy(admin: AdminClient, topic: str, policy: str, applied: bool) -> None:
    """Show POLICY of TOPIC as JSON. POLICY is the name in the admin API.

    Example:  magnetar topics get-policy orders retention --applied
    """
    query = "?applied=true" if applied else ""
    print_json(admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/{quote(read_name(policy), safe='')}{query}"))


@topics.command("set-policy", cls=TopicPolicyCommand)
@topic_argument
@click.argument("policy")
@click.argument("value")
@with_admin
def set_policy(admin: AdminClient, topic: str, policy: str, value: str) -> None:
    """Set POLICY of TOPIC to VALUE, which is JSON; null removes the policy.

    Example:  magnetar topics set-policy orders maxConsumers 10
    """
    body = policy_value(value)
    path = f"/admin/v2/{admin.path_of(topic)}/{quote(policy, safe='')}"
    if body is None:
        admin.call("DELETE", path)
    else:
        admin.call("PUT" if policy == "schemaCompatibilityStrategy" else "POST", path, body)
    click.echo("set" if body is not None else "removed")


@topics.command("compact")
@topic_argument
@click.option("--wait", is_flag=True, help="Return when the compaction has ended; exit code 2 if it failed.")
@json_option
@with_admin
def compact(admin: AdminClient, topic: str, wait: bool, as_json: bool) -> None:
    """Compact TOPIC: readers that ask for it get the last message of each key only. Nothing is deleted by this.

    Example:  magnetar topics compact orders --wait
    """
    for name in admin.partition_names(topic):
        admin.call("PUT", f"/admin/v2/{admin.path_of(name)}/compaction")
    if not wait:
        done("the compaction has begun", as_json, topic=topic)
        return
    compactions = {name: _compacted(admin, name) for name in admin.partition_names(topic)}
    failed = {name: end["lastError"] for name, end in compactions.items() if end["status"] != "SUCCESS"}
    if as_json:
        print_json({"topic": topic, "partitions": compactions})
    for name, error in failed.items():
        click.echo(f"{name}: {error or 'the compaction was interrupted'}", err=True)
    if failed:
        raise click.exceptions.Exit(2)
    if not as_json:
        click.echo("compacted")


def _compacted(admin: AdminClient, name: str) -> dict[str, Any]:
    """What became of the compaction, when it has ended."""
    while True:
        compaction: dict[str, Any] = admin.call("GET", f"/admin/v2/{admin.path_of(name)}/compaction")
        if compaction["status"] != "RUNNING":
            return compaction
        threading.Event().wait(LOOK_S)


@topics.command("terminate")
@topic_argument
@click.confirmation_option(prompt="No message can ever be written to it again. Continue?")
@with_admin
def terminate(admin: AdminClient, topic: str) -> None:
    """Terminate TOPIC: its messages can still be read, but no more can be written.

    Example:  magnetar topics terminate orders --yes
    """
    must_be_one(admin, topic)
    answer = admin.call("POST", f"/admin/v2/{admin.path_of(topic)}/terminate")
    click.echo(f"terminated; the last message is {id_of(answer)}")


for command in (
    entries.peek,
    entries.get_message,
    entries.examine,
    entries.truncate,
    entries.analyze_backlog,
    export_topic,
    import_topic,
):
    topics.add_command(command)


# -------------------------------------------------------------------------------- subscriptions


@click.group(cls=Guessing)
def subscriptions() -> None:
    """List, create, seek and delete the subscriptions of a topic."""


subscriptions.add_command(entries.properties)


@subscriptions.command("list")
@topic_argument
@json_option
@with_admin
def list_subscriptions(admin: AdminClient, topic: str, as_json: bool) -> None:
    """List the subscriptions of TOPIC.

    Example:  magnetar subscriptions list orders
    """
    say(admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/subscriptions"), as_json, show.lines)


@subscriptions.command("create")
@topic_argument
@click.argument("name")
@click.option("--from", "start", default="latest", show_default=True, help=PLACE_HELP)
@json_option
@with_admin
def create_subscription(admin: AdminClient, topic: str, name: str, start: str, as_json: bool) -> None:
    """Create subscription NAME on TOPIC; from then on the topic keeps messages for it.

    Example:  magnetar subscriptions create orders billing --from earliest
    """
    create_at(admin, topic, name, place_of(start, now_ms()))
    done("created", as_json, topic=topic, subscription=name, start=start)


@subscriptions.command("delete")
@topic_argument
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete it even if consumers are connected.")
@yes_option
@json_option
@with_admin
def delete_subscription(admin: AdminClient, topic: str, name: str, force: bool, yes: bool, as_json: bool) -> None:
    """Delete subscription NAME of TOPIC and its position. Asks first, unless --yes or --force is given.

    Example:  magnetar subscriptions delete orders billing --yes
    """
    confirm(f"Delete subscription {name} of {topic} with its position?", yes or force)
    admin.call("DELETE", f"{subscription_path(admin, topic, name)}?force={str(force).lower()}")
    done("deleted", as_json, topic=topic, subscription=name)


@subscriptions.command("seek")
@topic_argument
@click.argument("name")
@click.argument("place")
@with_admin
def seek(admin: AdminClient, topic: str, name: str, place: str) -> None:
    """Move subscription NAME of TOPIC to PLACE.

    PLACE is earliest, latest, a message id as the commands show it (the subscription continues with this message and
    its batch), a time, or how long ago (15m, 2h, 3d).

    Example:  magnetar subscriptions seek orders billing 2h
    """
    path = f"{subscription_path(admin, topic, name)}/resetcursor"
    where = place_of(place, now_ms())
    if isinstance(where, int):
        admin.call("POST", f"{path}/{where}")
    elif where == LATEST:
        admin.call("POST", subscription_path(admin, topic, name) + "/skip_all")
    elif where == EARLIEST:
        admin.call("POST", f"{path}/0")
    else:
        admin.call(
            "POST", f"{subscription_path(admin, partition_of(admin, topic, where), name)}/resetcursor", json_of(where)
        )
    click.echo(f"{name} continues at {place}")


@subscriptions.command("skip")
@topic_argument
@click.argument("name")
@click.argument("count", type=click.IntRange(min=1))
@with_admin
def skip(admin: AdminClient, topic: str, name: str, count: int) -> None:
    """Skip COUNT entries of the subscription NAME of TOPIC (one partition): they count as acknowledged.

    Example:  magnetar subscriptions skip orders billing 10
    """
    must_be_one(admin, topic)
    admin.call("POST", f"{subscription_path(admin, topic, name)}/skip/{count}")
    click.echo(f"{count} skipped")


@subscriptions.command("expire")
@topic_argument
@click.argument("name")
@click.argument("seconds", type=click.IntRange(min=1))
@with_admin
def expire(admin: AdminClient, topic: str, name: str, seconds: int) -> None:
    """Skip what is older than SECONDS in the subscription NAME of TOPIC: it counts as acknowledged.

    Example:  magnetar subscriptions expire orders billing 3600
    """
    try:
        admin.call("POST", f"{subscription_path(admin, topic, name)}/expireMessages/{seconds}")
    except AdminError as error:
        if error.status != 409:
            raise
        click.echo(f"nothing is older than {seconds} s")
    else:
        click.echo(f"what was older than {seconds} s is skipped")


@subscriptions.command("clear")
@topic_argument
@click.argument("name")
@with_admin
def clear(admin: AdminClient, topic: str, name: str) -> None:
    """Acknowledge all messages of TOPIC for subscription NAME.

    Example:  magnetar subscriptions clear orders billing
    """
    admin.call("POST", subscription_path(admin, topic, name) + "/skip_all")
    click.echo(f"{name} has no backlog")


# ----------------------------------------------------------------------------------------- lag


@click.command()
@click.argument("topics_", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topics)
@click.option("--namespace", default="public/default", show_default=True,
              help="Namespace whose topics are shown if no TOPIC is given.")  # fmt: skip
@click.option("--partitions", is_flag=True, help="Show each partition separately.")
@json_option
@with_admin
def lag(admin: AdminClient, topics_: tuple[str, ...], namespace: str, partitions: bool, as_json: bool) -> None:
    """Show the backlog of subscriptions, the largest first. It counts entries; an entry may be a batch of messages.

    Example:  magnetar lag orders --partitions
    """
    names = list(topics_)
    if not names:
        partitioned, plain = admin.whole_topics(namespace)
        names = partitioned + plain
    lags = []
    with show.progress(names, "topics") as shown:
        for name in shown:
            lags += _lags(admin, name, partitions)
    lags.sort(key=lambda facts: (-facts["backlog"], facts["topic"], facts["subscription"]))
    if as_json:
        print_json(lags)
        return
    rows = [
        (facts["topic"], facts["subscription"], facts["type"] or "-", str(facts["backlog"]),
         str(facts["unacknowledged"]), str(facts["consumers"]), "stuck" if facts["blocked"] else "")
        for facts in lags
    ]  # fmt: skip
    show.table(("topic", "subscription", "type", "backlog", "unacknowledged", "consumers", ""), rows)


def _lags(admin: AdminClient, topic: str, partitions: bool) -> list[dict[str, Any]]:
    lags = []
    for name in admin.partition_names(topic) if partitions else [topic]:
        for subscription, facts in admin.stats(name)["subscriptions"].items():
            if subscription == COMPACTION_CURSOR:
                continue  # nobody lags behind: it waits for the next compaction
            lags.append(
                {
                    "topic": name,
                    "subscription": subscription,
                    "type": facts["type"],
                    "backlog": facts["msgBacklog"],
                    "unacknowledged": facts["unackedMessages"],
                    "consumers": len(facts["consumers"]),
                    "blocked": bool(facts.get("blockedSubscriptionOnUnackedMsgs")),
                }
            )
    return lags
