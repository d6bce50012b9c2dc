"""Calls about a topic are answered by its owner; other brokers redirect to it (307), or ask it themselves."""

import json
import logging
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from aiohttp import web
from yarl import URL

from broker.admin import deputies
from broker.admin.http import ADMIN, Refused, topic_of
from broker.broker import Broker
from broker.errors import TopicNotFound
from broker.ownership.ownership import BundleOwnership
from broker.ownership.rules import BrokerAddress
from broker.topic.topic import Topic
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.topics.topic_name import TopicName

log = logging.getLogger(__name__)

# A partition's owner may first have to take its bundle over from a dead broker.
FORWARD_TIMEOUT_S: Final = 30.0

# Owners of a topic that may change while one of them is asked.
REDIRECTS_MAX: Final = 5

# Apache's brokers refuse a PUT of another type, also one without a body.
_JSON: Final = {"Content-Type": "application/json"}

# Where Apache's brokers fail, their reason is a stack trace; its first line is shown.
_LINE_END: Final = "\n"


def moved(url: str) -> web.HTTPTemporaryRedirect:
    """A redirect to *url*, letter by letter: the library would write `%2E%2E` as `..`, which leads elsewhere."""
    redirect = web.HTTPTemporaryRedirect(url)
    redirect.headers["Location"] = url
    return redirect


class Owners:
    """Finds the owners of topics, and forwards calls to them."""

    def __init__(self, broker: Broker, ownership: BundleOwnership) -> None:
        self._client = broker.peers
        self._broker = broker
        self._ownership = ownership

    @property
    def uses_tls(self) -> bool:
        """Whether other brokers are asked over TLS."""
        return self._client.uses_tls

    async def redirect_unless_here(self, request: web.Request, name: TopicName) -> None:
        """Return if this broker owns the topic; else raise a redirect to its owner."""
        authoritative = request.query.get("authoritative", "false") == "true"
        await self._broker.namespace(name.namespace)
        located = await self._ownership.locate(name, authoritative=authoritative)
        if located.here:
            return
        assert located.broker is not None, "a topic that is not here is somewhere else"
        base = located.broker.web_url(secure=request.secure)
        if not base:
            raise Refused(503, f"{name} is served by {located.broker.native_url}, which has no HTTP")
        flag = "true" if located.redirect and located.authoritative else "false"
        query = {**request.query, "authoritative": flag}
        text = "&".join(f"{quote(key)}={quote(value)}" for key, value in query.items())
        raise moved(f"{base}{request.rel_url.raw_path}?{text}")

    async def loaded(self, request: web.Request) -> Topic:
        """The topic, opened if it exists. Raises TopicNotFound, or redirects."""
        name = topic_of(request)
        if not await self._broker.ledgers.exists(name.managed_ledger_name):
            raise TopicNotFound(f"Topic {name} not found")
        await self.redirect_unless_here(request, name)
        return await self._broker.opening.stored_topic(name)  # it may be deleted meanwhile

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """How many partitions a topic has; 0: it is not partitioned, or with *create* may come to be. Raises
        TopicNotFound, MetadataFailure."""
        return await self._broker.partitions(name, create=create)

    async def loaded_or_created(self, request: web.Request) -> Topic:
        """The topic; created if policies allow it, as for a consumer. Raises BrokerError, or redirects."""
        name = topic_of(request)
        await self.redirect_unless_here(request, name)
        return await self._broker.opening.persistent(name, create=True)

    async def url_of(self, name: TopicName) -> str:
        """Where the HTTP of the topic's owner is, as another broker reaches it."""
        located = await self._ownership.locate(name, authoritative=False)
        asked = self._ownership.address
        if not located.here and located.broker is not None:
            asked = located.broker
        return self.web_url(asked)

    def web_url(self, owner: BrokerAddress) -> str:
        """Where this broker asks *owner* over HTTP."""
        return owner.web_url(secure=self._client.uses_tls)

    async def ask_partitions(
        self, method: str, name: TopicName, count: int, suffix: str, body: Any = None, *, fine: tuple[int, ...] = ()
    ) -> dict[TopicName, Any]:
        """The answers of the partitions' owners; partitions answered with one of the *fine* statuses are left out.

        Raises Refused with the answer of the first partition that is refused otherwise.
        """
        answers = {}
        for number in range(count):
            partition = name.with_partition(number)
            url = f"{await self.url_of(partition)}{ADMIN}/{partition.rest_path}{suffix}"
            try:
                answers[partition] = await self.ask(method, url, str(partition), body)
            except Refused as error:
                if error.status not in fine:
                    raise
        return answers

    async def delete(self, topic: TopicName) -> None:
        """Have a topic deleted by its owner, in use or not. Raises Refused."""
        url = f"{await self.url_of(topic)}{ADMIN}/{topic.rest_path}?force=true"
        await self.ask("DELETE", url, str(topic))

    async def try_ask(self, method: str, url: str, about: str) -> bool:
        """As `ask`; whether it was done. Why not is logged."""
        try:
            await self.ask(method, url, about)
        except Refused as error:
            log.warning("%s %s: %s", method, url, error)
            return False
        return True

    async def ask(self, method: str, url: str, about: str, body: Any = None) -> Any:
        """The answer of another broker (or of this one) to a request. Raises Refused with its status."""
        data = None if body is None else json.dumps(body).encode()
        for _ in range(REDIRECTS_MAX):
            status, text, elsewhere = await self._answer_of(method, url, about, data)
            if status not in (301, 302, 307, 308):
                break
            url = await self._checked_redirect(elsewhere, url, about)
        else:
            raise Refused(503, f"{about}: the owner changes too often; ask again")
        if status >= 400:
            try:
                reason = parse_json(text).get("reason", text)
            except (ValueError, AttributeError):
                reason = text
            raise Refused(status, f"{about}: {str(reason).strip().partition(_LINE_END)[0]}")
        try:
            return parse_json(text) if text else None
        except ValueError:
            raise Refused(502, f"{about}: {url} answers {status} with what is not JSON: {text[:100]!r}") from None

    async def _answer_of(self, method: str, url: str, about: str, data: bytes | None) -> tuple[int, str, str]:
        """Status, text, and where it says to ask instead."""
        timeout = aiohttp.ClientTimeout(total=FORWARD_TIMEOUT_S)
        try:
            shown = self._client.headers() | deputies.headers() | _JSON
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=shown) as session,
                # The URL as it is: the library would follow a `..` in it. Redirects are followed by `ask`.
                session.request(
                    method, URL(url, encoded=True), data=data, ssl=self._client.context, allow_redirects=False
                ) as answer,
            ):
                return answer.status, await answer.text(), answer.headers.get("Location", "")
        except ConfigurationError as error:
            raise Refused(500, str(error)) from None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Refused(503, f"{about}: {url} does not answer: {str(error) or 'time-out'}") from error

    async def _checked_redirect(self, elsewhere: str, url: str, about: str) -> str:
        """*elsewhere*, where a broker sends this one, if it is at a broker of the cluster: credentials go there."""
        base = "/".join(elsewhere.split("/", 3)[:3])
        if base in [self.web_url(address) for address in (await self._ownership.brokers()).values()]:
            return elsewhere
        raise Refused(
            502, f"{about}: {url} sends this broker on to {base or 'nowhere'}, which is no broker of the cluster"
        )
