"""What is sent to a receiver, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from autorecovery.callbacks.delivery import Answer, CannotPost
from autorecovery.callbacks.posts import HttpPoster

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def receiver(handler: Handler) -> AsyncIterator[str]:
    """The address of a receiver that answers with *handler*."""
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def test_body_and_headers_arrive_as_they_were_given_and_the_answer_comes_back() -> None:
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.method, request.path_qs, await request.read(), request.headers["Magnetar-Event-Id"]))
        return web.Response(status=202, text="thank you")

    poster = HttpPoster()
    async with receiver(handler) as url:
        assert await poster.post(f"{url}/in?key=a", b"\x00body", {"Magnetar-Event-Id": "e1"}) == Answer(
            202, "thank you"
        )
    await poster.close()
    assert seen == [("POST", "/in?key=a", b"\x00body", "e1")]


async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    paths = []

    async def handler(request: web.Request) -> web.Response:
        paths.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    poster = HttpPoster()
    async with receiver(handler) as url:
        answer = await poster.post(url + "/in", b"", {})
    await poster.close()
    assert answer == Answer(307, "redirects are not followed; register /elsewhere")
    assert paths == ["/in"]


async def test_of_a_long_answer_only_the_begin_is_read() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)
            await asyncio.sleep(0.001)

    poster = HttpPoster()
    async with receiver(handler) as url:
        answer = await poster.post(url, b"", {})
    await poster.close()
    assert answer.status == 500
    assert 0 < len(answer.text) <= 1024


async def test_a_receiver_that_is_silent_or_is_not_there_is_no_answer() -> None:
    async def handler(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    poster = HttpPoster(0.2)
    async with receiver(handler) as url:
        with pytest.raises(CannotPost, match="no answer within"):
            await poster.post(url, b"", {})
    with pytest.raises(CannotPost):
        await poster.post(url, b"", {})
    with pytest.raises(CannotPost):
        await poster.post("http://no-such-host.invalid/", b"", {})
    await poster.close()


async def test_what_does_not_speak_http_is_no_answer() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"SSH-2.0-x\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    poster = HttpPoster()
    with pytest.raises(CannotPost):
        await poster.post(f"http://127.0.0.1:{port}/", b"", {})
    await poster.close()
    server.close()
    await server.wait_closed()
