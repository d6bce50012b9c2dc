"""`/lookup/v2/topic`: which broker serves a topic, for clients that ask over HTTP."""

from typing import Final

from aiohttp import web

from broker.admin.http import json_answer, topic_of, word_answer
from broker.admin.owners import moved
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.security.authorization import Operation

_TOPIC: Final = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"


class LookupsApi:
    """Lookups over HTTP."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def add_routes(self, routes: Routes) -> None:
        routes.get(_TOPIC, self.lookup, Operation.LOOKUP)
        routes.get(_TOPIC + "/bundle", self.bundle, Operation.GET_BUNDLE)

    async def lookup(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        listener = request.query.get("listenerName", "") or request.headers.get("X-Pulsar-ListenerName", "")
        authoritative = request.query.get("authoritative") == "true"
        owner = await self._broker.lookups.find(name, authoritative=authoritative)
        address = owner.broker
        if owner.is_redirect:
            flag = "true" if owner.authoritative else "false"
            raise moved(f"{address.web_url(secure=request.secure)}{request.rel_url.raw_path}?authoritative={flag}")
        plain, tls = owner.service_urls(listener)
        answer = {
            "brokerId": address.broker_id or None,
            "brokerUrl": plain,
            "brokerUrlTls": tls or None,
            "httpUrl": address.http_url or None,
            "httpUrlTls": address.https_url or None,
            "nativeUrl": plain,
            "brokerUrlSsl": tls,
        }
        return json_answer({name: url for name, url in answer.items() if url is not None})

    async def bundle(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        policies = await self._broker.namespace(name.namespace)
        return word_answer(policies.bundles.range_of(name))
