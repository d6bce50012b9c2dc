"""Applications of others on a bookie's HTTP."""

import aiohttp
from aiohttp import web

from bookie.admin.server import AdminServer
from magnetar.processes.bookies.bookie import LedgerReader
from tests.support.bookie_admin_world import ROOT, socket_on_a_free_port
from tests.support.serving import BookieMachines


async def test_they_answer_before_the_bookie_serves_and_by_their_own_rules() -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(text=f"{request.method} {request.path}")

    async def broken(request: web.Request) -> web.Response:
        raise web.HTTPConflict(text="mine")

    app = web.Application()
    app.router.add_route("*", "/echo", echo)
    app.router.add_route("*", "/broken", broken)
    world = BookieMachines()
    reader = LedgerReader(world.store, world.clock, ROOT)
    admin = AdminServer(world.store, world.clock, reader, mounted={"/other/v1": app})
    listening = socket_on_a_free_port()
    await admin.start(listening)
    url = "http://{}:{}".format(*listening.getsockname())
    elsewhere = {"Origin": "http://elsewhere.example"}
    try:
        async with aiohttp.ClientSession() as session:

            async def got(method: str, path: str, **headers: str) -> tuple[int, str]:
                async with session.request(method, url + path, headers=headers) as answer:
                    return answer.status, await answer.text()

            assert await got("PUT", "/other/v1/echo", **elsewhere) == (200, "PUT /other/v1/echo")
            assert await got("GET", "/other/v1/broken") == (409, "mine")
            assert (await got("GET", "/other/v1/nothing"))[0] == 404
            assert (await got("PUT", "/api/v1/bookie/gc", **elsewhere))[0] == 403
            assert (await got("GET", "/api/v1/bookie/info"))[0] == 503
            assert (await got("GET", "/heartbeat"))[0] == 200
    finally:
        await admin.stop()
        await reader.close()
