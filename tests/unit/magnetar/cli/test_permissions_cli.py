"""Commands about permissions: what they ask of the broker, and what they show."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from broker.policies import permissions as ours
from magnetar.cli import main as cli
from magnetar.cli.permissions import PERMISSIONS
from tests.support.http_fake import Asked, HttpFake, http_fake

NS = "/admin/v2/namespaces/public/default/permissions"
TOPIC = "/admin/v2/persistent/public/default/orders/permissions"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpFake]:
    with http_fake() as made:
        monkeypatch.setenv("MAGNETAR_ADMIN_URL", made.url)
        yield made


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(cli.main, arguments, **options)


def test_the_permissions_are_those_of_the_broker() -> None:
    assert PERMISSIONS == ours.PERMISSIONS


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("namespaces grant public/default a/b --allow produce --allow consume",
         Asked("POST", f"{NS}/a%2Fb", ["produce", "consume"])),
        ("namespaces grant-permission public/default ann --allow sinks", Asked("POST", f"{NS}/ann", ["sinks"])),
        ("namespaces revoke public/default ann", Asked("DELETE", f"{NS}/ann", None)),
        ("namespaces grant-subscription public/default s/1 ann bob",
         Asked("POST", f"{NS}/subscription/s%252F1", ["ann", "bob"])),
        ("namespaces revoke-subscription public/default s/1 ann", Asked("DELETE", f"{NS}/s%252F1/ann", None)),
        ("topics grant orders ann --allow produce", Asked("POST", f"{TOPIC}/ann", ["produce"])),
        ("topics revoke orders ann", Asked("DELETE", f"{TOPIC}/ann", None)),
    ],
)  # fmt: skip
def test_what_a_command_asks_of_the_broker(fake: HttpFake, typed: str, asked: Asked) -> None:
    fake.answer(asked.method, asked.path, status=204)
    found = run(*typed.split())
    assert found.exit_code == 0, found.output
    assert fake.asked == [asked]


def test_permissions_are_shown(fake: HttpFake) -> None:
    fake.answer("GET", NS, {"bob": ["consume"], "ann": ["produce", "sinks"], "eve": []})
    fake.answer("GET", f"{NS}/subscription", {"s": ["ann"]})
    fake.answer("GET", TOPIC, {"bob": ["consume"]})
    lines = run("namespaces", "permissions", "public/default").output.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["ann", "produce,", "sinks"],
        ["bob", "consume"],
        ["eve", "nothing"],
    ]
    assert "ann" in run("namespaces", "permissions", "public/default", "--subscriptions").output
    assert json.loads(run("topics", "permissions", "orders", "--json").output) == {"bob": ["consume"]}


def test_an_unknown_permission_is_refused_before_the_broker_is_asked(fake: HttpFake) -> None:
    found = run("topics", "grant", "orders", "ann", "--allow", "fly")
    assert found.exit_code != 0
    assert "produce" in found.output
    assert fake.asked == []


def test_the_administrators_of_a_tenant_are_replaced_and_its_clusters_stay(fake: HttpFake) -> None:
    path = "/admin/v2/tenants/public"
    fake.answer("GET", path, {"adminRoles": ["old"], "allowedClusters": ["lab"]})
    fake.answer("POST", path, status=204)
    assert run("tenants", "update", "public", "--admin-role", "ops").exit_code == 0
    assert fake.asked[-1] == Asked("POST", path, {"adminRoles": ["ops"], "allowedClusters": ["lab"]})
