"""The nodes of brokers, of their leader and of the owners of bundles, in Apache's JSON. No IO."""

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from broker.ownership.load.report import MANAGER, BrokerLoad, decode_load
from broker.ownership.rules import BrokerAddress
from broker.settings.groups.ports import INTERNAL
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import Corruption

NAMESPACE: Final = "/namespace"
"""Below it stand the owners of bundles, by the bundles' names."""


def encode_owner(address: BrokerAddress, *, disabled: bool = False) -> bytes:
    """The node `/namespace/<tenant>/<namespace>/<range>` of a bundle's owner; *disabled* while it unloads."""
    value: dict[str, Any] = {
        "brokerId": address.broker_id or None,
        "nativeUrl": address.service_url or None,
        "nativeUrlTls": address.service_url_tls or None,
        "httpUrl": address.http_url or None,
        "httpUrlTls": address.https_url or None,
        "disabled": disabled,
        "advertisedListeners": _listeners_value(address),
    }
    return json.dumps({key: item for key, item in value.items() if item is not None}, separators=(",", ":")).encode()


def decode_owner(value: bytes, path: str) -> tuple[BrokerAddress, bool]:
    """The owner in that node and whether it is unloading. Raises Corruption."""
    try:
        record = parse_json(value)
        native = record.get("nativeUrl") or "", record.get("nativeUrlTls") or ""
        http = record.get("httpUrl") or "", record.get("httpUrlTls") or ""
        address = BrokerAddress(*native, *http, _listeners(record, *native))
        return address, bool(record.get("disabled"))
    except (ValueError, AttributeError, TypeError) as error:
        raise Corruption(f"{path}: expected the JSON of a bundle's owner, found {value[:80]!r}") from error


def encode_broker(
    address: BrokerAddress,
    version: str,
    started_ms: int,
    load: Mapping[str, Any] | None = None,
    *,
    persistent: bool = True,
    non_persistent: bool = True,
) -> bytes:
    """The node `/loadbalance/brokers/<id>` of a living broker; *load*: the members of `load.report.encode_load`.

    *persistent*, *non_persistent*: the kinds of topics that it serves.
    """
    members = dict(load or {"lastStats": {}})
    value = {
        "brokerId": address.broker_id or None,
        "webServiceUrl": address.http_url or None,
        "webServiceUrlTls": address.https_url or None,
        "pulsarServiceUrl": address.service_url or None,
        "pulsarServiceUrlTls": address.service_url_tls or None,
        "persistentTopicsEnabled": persistent,
        "nonPersistentTopicsEnabled": non_persistent,
        **members,
        "brokerVersion": version,
        "brokerVersionString": version,
        "protocols": {},
        "advertisedListeners": _listeners_value(address),
        "loadManagerClassName": MANAGER,
        "startTimestamp": started_ms,
        "maxResourceUsage": decode_load(members).usage,
        "loadReportType": "LocalBrokerData",
    }
    return json.dumps({key: item for key, item in value.items() if item is not None}, separators=(",", ":")).encode()


def decode_broker(value: bytes, path: str) -> BrokerAddress:
    """How that broker is reached. Raises Corruption."""
    return decode_loaded_broker(value, path)[0]


def decode_loaded_broker(value: bytes, path: str) -> tuple[BrokerAddress, BrokerLoad]:
    """How that broker is reached, and its load. Raises Corruption."""
    try:
        record = parse_json(value)
        native = record.get("pulsarServiceUrl") or "", record.get("pulsarServiceUrlTls") or ""
        http = record.get("webServiceUrl") or "", record.get("webServiceUrlTls") or ""
        address = BrokerAddress(*native, *http, _listeners(record, *native))
        return address, decode_load(record)
    except (ValueError, AttributeError, TypeError) as error:
        raise Corruption(f"{path}: expected the JSON of a broker, found {value[:80]!r}") from error


def _listeners_value(address: BrokerAddress) -> dict[str, Any]:
    """The named listeners, and `internal`: brokers of 5.0 send clients to a broker by that one alone."""
    listeners: dict[str, Any] = {
        name: {"brokerServiceUrl": plain or None, "brokerServiceUrlTls": tls or None}
        for name, (plain, tls) in address.listeners.items()
    }
    urls = {
        "brokerServiceUrl": address.service_url,
        "brokerServiceUrlTls": address.service_url_tls,
        "brokerHttpUrl": address.http_url,
        "brokerHttpsUrl": address.https_url,
    }
    listeners.setdefault(INTERNAL, {name: url for name, url in urls.items() if url})
    return listeners


def _listeners(record: Mapping[str, Any], *native: str) -> dict[str, tuple[str, str]]:
    """The named listeners, without an `internal` that has only the *native* URLs, which every broker of 5.0 writes."""
    listeners = {
        name: (item.get("brokerServiceUrl") or "", item.get("brokerServiceUrlTls") or "")
        for name, item in (record.get("advertisedListeners") or {}).items()
    }
    if listeners.get(INTERNAL) == native:
        del listeners[INTERNAL]
    return listeners


def encode_leader(broker_id: str, address: BrokerAddress) -> bytes:
    """The node `/loadbalance/leader`."""
    url = address.http_url or address.https_url
    return json.dumps({"serviceUrl": url, "brokerId": broker_id}, separators=(",", ":")).encode()


def decode_leader(value: bytes, path: str) -> tuple[str, str]:
    """(broker id, HTTP URL) in that node; older brokers write the URL only. Raises Corruption."""
    try:
        record = parse_json(value)
        url = record.get("serviceUrl") or ""
        return record.get("brokerId") or urlsplit(url).netloc, url
    except (ValueError, AttributeError, TypeError) as error:
        raise Corruption(f"{path}: expected the JSON of the leading broker, found {value[:80]!r}") from error
