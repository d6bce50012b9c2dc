"""`/lookup/v2/topic`: which broker serves a topic, for clients that ask over HTTP."""

from typing import Final

from aiohttp import web

from broker.admin.http import Refused, json_answer, topic_of, word_answer
from broker.broker import Broker
from broker.ownership.ownership import BundleOwnership

_TOPIC: Final = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"


class LookupsApi:
    """Where topics are."""

    def __init__(self, broker: Broker, ownership: BundleOwnership) -> None:
        self._broker = broker
        self._ownership = ownership

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get(_TOPIC, self.lookup)
        router.add_get(_TOPIC + "/bundle", self.bundle)

    async def lookup(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        listener = request.query.get("listenerName", "") or request.headers.get("X-Pulsar-ListenerName", "")
        await self._broker.namespace(name.namespace)
        located = await self._ownership.locate(name, authoritative=request.query.get("authoritative") == "true")
        address = self._broker.address if located.here else located.broker
        assert address is not None, "a topic that is not here is somewhere else"
        if located.redirect and not located.here:
            flag = "true" if located.authoritative else "false"
            raise web.HTTPTemporaryRedirect(f"{address.http_url}{request.rel_url.raw_path}?authoritative={flag}")
        plain, tls = address.service_url, address.service_url_tls
        if listener:
            if listener not in address.listeners:
                raise Refused(503, f"the broker do not have {listener} listener")
            plain, tls = address.listeners[listener]
        answer = {
            "brokerUrl": plain,
            "brokerUrlTls": tls or None,
            "httpUrl": address.http_url,
            "httpUrlTls": address.https_url or None,
            "nativeUrl": plain,
            "brokerUrlSsl": tls,
        }
        return json_answer({name: url for name, url in answer.items() if url is not None})

    async def bundle(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        policies = await self._broker.namespace(name.namespace)
        return word_answer(policies.bundles.range_of(name))
