"""Sends the requests of callbacks over HTTP."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from autorecovery.callbacks.delivery import Answer, CannotPost

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

# A receiver stores the event and answers. One that works on it first answers too late, and gets it again.
ANSWER_S: Final = 10.0

# What is read of an answer: a log line keeps less.
_ANSWER_BYTES: Final = 1_024


class HttpPoster:
    """A Poster over HTTP and HTTPS. Certificates are checked with the authorities that the system trusts."""

    def __init__(self, timeout_s: float = ANSWER_S) -> None:
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        import aiohttp

        if self._session is None:
            # No cookies are kept: receivers of different owners share this session.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._timeout_s), cookie_jar=aiohttp.DummyCookieJar()
            )
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                text = (await answer.content.read(_ANSWER_BYTES)).decode("utf-8", "replace")
                if 300 <= answer.status < 400:
                    text = f"redirects are not followed; register {answer.headers.get('Location', 'the new address')}"
                return Answer(answer.status, text)
        except TimeoutError as error:
            raise CannotPost(f"no answer within {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CannotPost(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
