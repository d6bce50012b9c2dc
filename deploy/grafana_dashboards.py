"""Writes the dashboards in `deploy/grafana`: `python deploy/grafana_dashboards.py`.

They are kept as JSON because Grafana reads that; they are made here because a panel is one line here. A test compares
the two, and asks whether the servers tell each metric and label of the queries.
"""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).parent / "grafana"

# Grafana's grid is 24 wide; two panels stand beside each other.
_WIDTH: Final = 12
_HEIGHT: Final = 8


class Query(NamedTuple):
    """A query, and what its lines are called."""

    text: str
    legend: str = ""


class Panel(NamedTuple):
    """One plot."""

    title: str
    unit: str
    queries: tuple[Query, ...]


def panel(title: str, unit: str, *queries: tuple[str, str]) -> Panel:
    return Panel(title, unit, tuple(Query(*one) for one in queries))


_BROKER: Final = '{cluster="$cluster"}'
_SPACE: Final = '{cluster="$cluster", namespace=~"$namespace"}'
_TOPIC: Final = '{cluster="$cluster", namespace=~"$namespace", topic=~"$topic"}'

BROKER: Final = (
    panel(
        "Messages a second", "ops",
        (f"sum(pulsar_broker_rate_in{_BROKER})", "in"), (f"sum(pulsar_broker_rate_out{_BROKER})", "out"),
    ),
    panel(
        "Bytes a second", "Bps",
        (f"sum(pulsar_broker_throughput_in{_BROKER})", "in"), (f"sum(pulsar_broker_throughput_out{_BROKER})", "out"),
    ),
    panel("Backlog in entries", "short", (f"pulsar_broker_msg_backlog{_BROKER}", "{{instance}}")),
    panel("Stored, without copies", "bytes", (f"sum(pulsar_broker_storage_logical_size{_BROKER})", "all")),
    panel("Open topics", "short", (f"pulsar_broker_topics_count{_BROKER}", "{{instance}}")),
    panel("Bundles", "short", (f"pulsar_lb_bundles_owned{_BROKER}", "{{instance}}")),
    panel(
        "Clients", "short",
        (f"sum(pulsar_broker_producers_count{_BROKER})", "producers"),
        (f"sum(pulsar_broker_consumers_count{_BROKER})", "consumers"),
        (f"sum(pulsar_broker_subscriptions_count{_BROKER})", "subscriptions"),
    ),
    panel(
        "Connections", "short",
        ("pulsar_active_connections", "{{instance}}"),
        ("increase(pulsar_connection_create_fail_count[5m])", "refused, {{instance}}"),
    ),
    panel(
        "Authentication a second", "ops",
        ("sum by (auth_method) (rate(pulsar_authentication_success_total[5m]))", "admitted by {{auth_method}}"),
        ("sum by (auth_method) (rate(pulsar_authentication_failures_total[5m]))", "refused by {{auth_method}}"),
    ),
    panel(
        "TLS handshakes that failed, a second", "ops",
        ("rate(magnetar_broker_tls_handshakes_failed_total[5m])", "{{instance}}"),
    ),
)  # fmt: skip

TOPICS: Final = (
    panel("Messages a second in", "ops", (f"topk(20, pulsar_rate_in{_TOPIC})", "{{topic}}")),
    panel("Messages a second out", "ops", (f"topk(20, pulsar_rate_out{_TOPIC})", "{{topic}}")),
    panel("Bytes a second in", "Bps", (f"topk(20, pulsar_throughput_in{_TOPIC})", "{{topic}}")),
    panel("Bytes a second out", "Bps", (f"topk(20, pulsar_throughput_out{_TOPIC})", "{{topic}}")),
    panel("Backlog of topics in entries", "short", (f"topk(20, pulsar_msg_backlog{_TOPIC})", "{{topic}}")),
    panel("Stored, without copies", "bytes", (f"topk(20, pulsar_storage_logical_size{_TOPIC})", "{{topic}}")),
    panel(
        "Backlog of subscriptions in entries", "short",
        (f"topk(20, pulsar_subscription_back_log{_TOPIC})", "{{topic}} {{subscription}}"),
    ),
    panel(
        "Delivered and not acknowledged", "short",
        (f"topk(20, pulsar_subscription_unacked_messages{_TOPIC})", "{{topic}} {{subscription}}"),
    ),
    panel(
        "Acknowledged a second", "ops",
        (f"topk(20, pulsar_subscription_msg_ack_rate{_TOPIC})", "{{topic}} {{subscription}}"),
    ),
    panel(
        "Delivered again a second", "ops",
        (f"topk(20, pulsar_subscription_msg_rate_redeliver{_TOPIC})", "{{topic}} {{subscription}}"),
    ),
    panel(
        "Waiting for their time", "short",
        (f"topk(20, pulsar_subscription_delayed{_TOPIC})", "{{topic}} {{subscription}}"),
    ),
    panel(
        "Open topics, producers, consumers", "short",
        (f"count(pulsar_rate_in{_SPACE})", "topics"),
        (f"sum(pulsar_producers_count{_SPACE})", "producers"), (f"sum(pulsar_consumers_count{_SPACE})", "consumers"),
    ),
)  # fmt: skip

_OWN: Final = '{bookie=~"$bookie"}'

BOOKIES: Final = (
    panel("Entries added a second", "ops", (f"rate(magnetar_bookie_adds_total{_OWN}[5m])", "{{bookie}}")),
    panel("Bytes added a second", "Bps", (f"rate(magnetar_bookie_add_bytes_total{_OWN}[5m])", "{{bookie}}")),
    panel(
        "Reads a second", "ops",
        (f"rate(magnetar_bookie_reads_total{_OWN}[5m])", "{{bookie}}"),
        (f"rate(magnetar_bookie_cold_reads_total{_OWN}[5m])", "from disk, {{bookie}}"),
    ),
    panel(
        "Milliseconds until an entry was on disk", "ms",
        ('bookkeeper_server_ADD_ENTRY{success="true", quantile=~"0.5|0.99"}', "{{quantile}}, {{instance}}"),
    ),
    panel(
        "Milliseconds of a journal's sync", "ms",
        ('bookie_journal_JOURNAL_SYNC{success="true", quantile="0.99"}', "99 of 100, {{instance}}"),
    ),
    panel(
        "Requests that wait", "short",
        (f"magnetar_bookie_adds_in_flight{_OWN}", "adds, {{bookie}}"),
        (f"magnetar_bookie_reads_in_flight{_OWN}", "reads, {{bookie}}"),
    ),
    panel(
        "Disk in use", "percentunit",
        (
            f"1 - magnetar_bookie_disk_free_bytes{_OWN} / magnetar_bookie_disk_total_bytes{_OWN}",
            "{{bookie}} {{directory}}",
        ),
    ),
    panel("Read-only", "short", (f"magnetar_bookie_read_only_reason{_OWN}", "{{bookie}}: {{reason}}")),
    panel(
        "Entry logs", "bytes",
        (f"magnetar_bookie_entry_log_bytes{_OWN}", "all, {{bookie}}"),
        (f"magnetar_bookie_entry_log_live_bytes{_OWN}", "of ledgers that are there, {{bookie}}"),
    ),
    panel("Given back a second", "Bps", (f"rate(magnetar_bookie_gc_reclaimed_bytes_total{_OWN}[15m])", "{{bookie}}")),
    panel("Ledgers", "short", (f"magnetar_bookie_ledgers{_OWN}", "{{bookie}}")),
    panel(
        "Damage", "short",
        (f"magnetar_bookie_scrub_entries_lost{_OWN}", "entries lost, {{bookie}}"),
        (f"magnetar_bookie_damaged_logs{_OWN}", "damaged logs, {{bookie}}"),
        (f"increase(magnetar_bookie_flush_failures_total{_OWN}[15m])", "flushes that failed, {{bookie}}"),
    ),
)  # fmt: skip

# Every node tells the same of the cluster, so the greatest counts.
RECOVERY: Final = (
    panel(
        "Ledgers", "short",
        ("max(magnetar_autorecovery_under_replicated_ledgers)", "lack copies, or move"),
        ("max(magnetar_autorecovery_lost_ledgers)", "with entries that no bookie has"),
    ),
    panel(
        "Bookies", "short",
        ("max by (serving) (magnetar_autorecovery_bookies)", "{{serving}}"),
        ("max by (state) (magnetar_autorecovery_bookie_states)", "{{state}}"),
    ),
    panel(
        "Switched on, and watched", "short",
        ("max(magnetar_autorecovery_enabled)", "switched on"),
        ("max(magnetar_autorecovery_has_auditor)", "auditor there"),
    ),
    panel("Since the last audit", "s", ("time() - max(magnetar_autorecovery_last_audit_timestamp_seconds)", "age")),
    panel(
        "Entries copied a second", "ops",
        ("max by (node) (rate(magnetar_autorecovery_copied_entries_total[5m]))", "{{node}}"),
    ),
    panel(
        "Bytes copied a second", "Bps",
        ("max by (node) (rate(magnetar_autorecovery_copied_bytes_total[5m]))", "{{node}}"),
    ),
    panel(
        "Ledgers repaired a minute", "short",
        ("max by (node) (rate(magnetar_autorecovery_repaired_ledgers_total[5m])) * 60", "{{node}}"),
    ),
    panel(
        "Drains", "short",
        ("max by (bookie) (magnetar_autorecovery_drain_ledgers_left)", "ledgers left on {{bookie}}"),
        ("max by (bookie) (magnetar_autorecovery_drain_failed_ledgers)", "ledgers that cannot leave {{bookie}}"),
        ("max by (node) (magnetar_autorecovery_waiting_ledgers)", "ledgers that wait, {{node}}"),
    ),
)  # fmt: skip

# Name → what a person chooses at the top: (variable, metric, label, whether several may be chosen).
_CLUSTER: Final = ("cluster", "pulsar_broker_topics_count", "cluster", False)
_NAMESPACE: Final = ("namespace", 'pulsar_rate_in{cluster="$cluster"}', "namespace", True)
_TOPIC_NAME: Final = ("topic", 'pulsar_rate_in{cluster="$cluster", namespace=~"$namespace"}', "topic", True)
_BOOKIE: Final = ("bookie", "magnetar_bookie_ledgers", "bookie", True)

DASHBOARDS: Final = {
    "broker": ("Magnetar: brokers", BROKER, (_CLUSTER,)),
    "topics": ("Magnetar: topics", TOPICS, (_CLUSTER, _NAMESPACE, _TOPIC_NAME)),
    "bookies": ("Magnetar: bookies", BOOKIES, (_BOOKIE,)),
    "auto-recovery": ("Magnetar: auto-recovery", RECOVERY, ()),
}

_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


def dashboard(name: str) -> dict[str, Any]:
    """One dashboard as Grafana imports it."""
    title, panels, variables = DASHBOARDS[name]
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "uid": f"magnetar-{name}",
        "title": title,
        "tags": ["magnetar"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source, *(_variable(*one) for one in variables)]},
        "panels": [_panel(number, one) for number, one in enumerate(panels)],
    }


def _variable(name: str, metric: str, label: str, is_many: bool) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric}, {label})", "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": is_many,
        "includeAll": is_many,
        **({"allValue": ".*", "current": {"text": "All", "value": "$__all"}} if is_many else {}),
    }


def _panel(number: int, told: Panel) -> dict[str, Any]:
    at = {"x": number % 2 * _WIDTH, "y": number // 2 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
    return {
        "id": number + 1,
        "title": told.title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": told.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": one.text, "legendFormat": one.legend}
            for at, one in enumerate(told.queries)
        ],
    }


def text_of(name: str) -> str:
    return json.dumps(dashboard(name), indent=2) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        (FOLDER / f"{each}.json").write_text(text_of(each))
