"""Callers by what they say of themselves: takes the place of authentication in tests of authorization.

A client says its role in the CONNECT's `auth_data`, in the header `X-Role` or in the metadata `x-role`;
`original_principal`, `X-Original` and `x-original` name the role for which a proxy asks. Who says nothing is nobody.
"""

from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from broker.admin.http import CALLER
from broker.binary.connection import Connection
from broker.wire import pulsar_pb2 as wire
from magnetar_core.security.caller import Caller


def believe_everybody(monkeypatch: pytest.MonkeyPatch, own_role: str = "admin") -> None:
    """Take every caller of the binary, HTTP and gRPC ports for what it says; brokers ask each other as *own_role*."""
    connected = Connection._on_connect

    def on_connect(self: Connection, connect: wire.CommandConnect) -> None:
        connected(self, connect)
        caller = Caller(connect.auth_data.decode() or None, connect.original_principal or None)
        self._client = self._client._replace(caller=caller)

    def of_request(request: Any) -> Caller:
        if CALLER in request:  # for whom a broker asks
            return cast(Caller, request[CALLER])
        return Caller(request.headers.get("X-Role"), request.headers.get("X-Original"))

    def of_context(context: Any) -> Caller:
        said = dict(context.invocation_metadata())
        return Caller(said.get("x-role"), said.get("x-original"))

    def session(**more: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(**{**more, "headers": {**more["headers"], "X-Role": own_role}})

    asked = SimpleNamespace(ClientSession=session, ClientTimeout=aiohttp.ClientTimeout, ClientError=aiohttp.ClientError)
    monkeypatch.setattr("broker.admin.owners.aiohttp", asked)
    monkeypatch.setattr(Connection, "_on_connect", on_connect)
    for module in ("rights", "page.calls"):
        monkeypatch.setattr(f"broker.admin.{module}.caller_of", of_request)
    for module in ("service", "publish", "topic_watches", "consume"):
        monkeypatch.setattr(f"broker.grpc.{module}.caller_of", of_context)
