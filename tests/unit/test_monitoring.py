"""Dashboards, alert rules and the page about monitoring, against what the servers really tell.

A query is taken apart into metrics, the labels it selects by and the labels it groups by. That is no parser of the
whole language: what it does not understand it takes for a name, and a name that nobody tells fails.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest
import yaml

from autorecovery.admin.metrics import recovery_samples
from deploy.grafana_dashboards import DASHBOARDS, FOLDER, text_of
from magnetar_core.runtime.observe import Metrics
from tests.support.bookie_admin_world import administered
from tests.support.dashboard import bookie_gone, drain_failed, drain_under_way
from tests.support.serving import BookieMachines
from tests.support.tls_files import Authority
from tests.support.vectors import VECTORS
from tests.unit.broker.admin.admin_world import AdminWorld
from tests.unit.broker.admin.test_authentication import SECURE, bearer

ROOT: Final = Path(__file__).parents[2]
PROMETHEUS: Final = ROOT / "deploy/prometheus"
PAGE: Final = ROOT / "docs/monitoring.md"

Told = dict[str, set[str]]
"""Metric → its labels."""

# What is no metric in a query: functions, aggregations, words between operands.
_WORDS: Final = frozenset(
    {
        "absent", "and", "bool", "by", "count", "deriv", "increase", "max", "min", "on", "or", "predict_linear", "rate",
        "sum", "time", "topk", "unless", "without",
    }
)  # fmt: skip
# Labels and metrics that Prometheus itself adds.
_OWN_LABELS: Final = {"job", "instance"}
_OWN_METRICS: Final = {"up"}

_NAME: Final = r"[a-zA-Z_:][\w:]*"


def told_by(exposition: str) -> Told:
    found: Told = {}
    for name, labels in re.findall(rf"^({_NAME})(?:\{{(.*)\}})? \S+$", exposition, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


@pytest.fixture
async def told() -> Told:
    """What a broker with clients and authentication, a bookie, and auto-recovery in some states tell."""
    found: Told = {}
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        folder = Authority(Path(stack.enter_context(tempfile.TemporaryDirectory()))).folder("broker")
        files = {"tls_certificate": str(folder / "tls.crt"), "tls_key": str(folder / "tls.key")}
        side = await world.side(**SECURE, **files, service_port_tls=0, nic_gbps=10.0)

        def work() -> None:
            token = pulsar.AuthenticationToken(bearer().removeprefix("Bearer "))
            client = pulsar.Client(side.url, authentication=token)
            client.subscribe("persistent://public/default/orders", "billing")
            client.create_producer("persistent://public/default/orders").send(b"one")
            client.close()

        await world.run(work)
        texts = [side.admin.metrics.exposition().decode()]
        async with administered(BookieMachines()) as admin:
            texts.append((await admin.call("GET", "/metrics", None)).text)
    for overview in (bookie_gone(), drain_under_way(), drain_failed()):
        metrics = Metrics()
        metrics.add(lambda shown=overview: recovery_samples(shown))  # type: ignore[misc]
        texts.append(metrics.exposition().decode())
    for text in texts:
        for name, labels in told_by(text).items():
            found.setdefault(name, set()).update(labels)
    return found


def taken_apart(query: str) -> tuple[set[str], dict[str, set[str]], set[str]]:
    """(metrics, the labels that each is selected by, the labels that are grouped by)."""
    text = re.sub(r"\[\w+\]", "", query)
    grouped = {
        label.strip()
        for labels in re.findall(r"\b(?:by|without|on)\s*\(([^)]*)\)", text)
        for label in labels.split(",")
    }
    text = re.sub(r"\b(?:by|without|on)\s*\([^)]*\)", "", text)
    selected: dict[str, set[str]] = {}
    for name, selector in re.findall(rf"({_NAME})\{{([^}}]*)\}}", text):
        selected.setdefault(name, set()).update(re.findall(rf"({_NAME})\s*(?:=~|!~|!=|=)", selector))
    text = re.sub(r"\{[^}]*\}", "", text)
    names = set(re.findall(rf"(?<![\w.:])({_NAME})", re.sub(r"\d+e\d+", "", text))) - _WORDS
    return names, selected, grouped


def problems(query: str, told: Told) -> Iterator[str]:
    names, selected, grouped = taken_apart(query)
    if not names:
        yield "it names no metric"
    for name in sorted(names - _OWN_METRICS):
        if name not in told:
            yield f"{name} is not told"
            continue
        for label in (selected.get(name, set()) | grouped) - told[name] - _OWN_LABELS:
            yield f"{name} has no label {label}"


def queries_of_dashboard(name: str) -> Iterator[str]:
    made = json.loads((FOLDER / f"{name}.json").read_text())
    for panel in made["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in made["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert asked is not None
            yield f"max by ({asked[2]}) ({asked[1]})"


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_each_dashboard_is_as_it_is_made(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text() == text_of(name), "run: python deploy/grafana_dashboards.py"


async def test_each_query_of_our_dashboards_is_about_what_the_servers_tell(told: Told) -> None:
    found = {(name, query): list(problems(query, told)) for name in DASHBOARDS for query in queries_of_dashboard(name)}
    assert len(found) > 40
    assert {key: told_ for key, told_ in found.items() if told_} == {}


async def test_the_lines_of_a_panel_are_called_by_labels_that_are_there(told: Told) -> None:
    for name in DASHBOARDS:
        for panel in json.loads((FOLDER / f"{name}.json").read_text())["panels"]:
            for target in panel["targets"]:
                names, _, grouped = taken_apart(target["expr"])
                labels = grouped or set.union(*(told[one] for one in names))
                used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                assert used <= labels | _OWN_LABELS, panel["title"]


async def test_each_alert_is_about_what_the_servers_tell(told: Told) -> None:
    found = {rule["alert"]: list(problems(rule["expr"], told)) for rule in rules()}
    assert len(found) == len(rules()), "each has a name of its own"
    assert {alert: told_ for alert, told_ in found.items() if told_} == {}


def test_each_alert_says_what_is_wrong_how_urgent_it_is_and_what_to_do() -> None:
    production = (ROOT / "docs/production.md").read_text()
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert rule["annotations"].keys() == {"summary"}, f"{rule['alert']}: a text with a comma needs quotes"
        assert f"`{rule['alert']}`" in production, f"docs/production.md does not say what to do about {rule['alert']}"


def test_what_prometheus_is_to_ask_are_paths_that_servers_have() -> None:
    jobs = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text())["scrape_configs"]
    assert {job["job_name"]: job["metrics_path"] for job in jobs} == {
        "magnetar-broker": "/metrics",
        "magnetar-bookie": "/metrics",
        "magnetar-autorecovery": "/manage/v1/metrics",
    }
    assert yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text())["rule_files"] == ["alerts.yaml"]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_promtool_accepts_rules_and_configuration(tmp_path: Path) -> None:
    copied = tmp_path / "prometheus.yaml"
    text = (PROMETHEUS / "prometheus.yaml").read_text()
    without_files = re.sub(r"^ *(# )?(authorization|tls_config): .*\n", "", text, flags=re.MULTILINE)
    copied.write_text(without_files)  # which are not here
    shutil.copy(PROMETHEUS / "alerts.yaml", tmp_path)
    subprocess.run(["promtool", "check", "rules", tmp_path / "alerts.yaml"], check=True)
    subprocess.run(["promtool", "check", "config", copied], check=True)


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("sum(pulsar_rate_ni)", ["pulsar_rate_ni is not told"]),
        ('pulsar_rate_in{tpic="x"}', ["pulsar_rate_in has no label tpic"]),
        ("sum by (bookie) (pulsar_rate_in)", ["pulsar_rate_in has no label bookie"]),
        ("rate(pulsar_rate_in[5m]) > 1e6 and up == 0", []),
        ("1 + 2", ["it names no metric"]),
    ],
)
def test_a_query_about_what_is_not_there_is_found_out(query: str, wrong: list[str]) -> None:
    assert list(problems(query, {"pulsar_rate_in": {"topic"}})) == wrong


# -------------------------------------------------------------------------------- dashboards made for Apache


def published() -> dict[str, list[str]]:
    """Name in the queries of the published dashboards → the dashboards."""
    lines = (VECTORS / "metrics/dashboards.txt").read_text().splitlines()
    return {name: dashboards for name, *dashboards in (line.split() for line in lines)}


async def test_the_page_names_what_published_dashboards_ask_for_and_nobody_tells(told: Told) -> None:
    found = published()
    rows = [f"| `{name}` | {', '.join(dashboards)} |" for name, dashboards in sorted(found.items()) if name not in told]
    written = re.findall(r"^\| `\w+` \|.*\|$", PAGE.read_text().partition("## Dashboards made")[2], re.MULTILINE)
    assert written == rows
    assert len(rows) < len(found)
    assert f"{len(found) - len(rows)} of {len(found)} names" in PAGE.read_text()
