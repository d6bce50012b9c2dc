"""Our commands, clients and the client of brokers against hostile servers (`tests.abuse.hostile_server`).

1. A token goes to no host but those of the cluster as it was configured, and never from TLS to clear text; no file is
   opened.
2. Whatever is answered ends in a result or in an error that names the server: no traceback, no other class of error.
"""

import asyncio
import contextlib
import datetime
import random
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from click.testing import CliRunner

from broker.admin.http import Refused
from broker.admin.owners import Owners
from magnetar.cli.main import main
from magnetar.client.access import Access
from magnetar.client.async_client import AsyncClient
from magnetar.client.base.options import ProducerAccess
from magnetar.client.errors import TopicError
from magnetar_core.security.tls.issuing import new_authority, new_server
from tests.abuse import hostile_server
from tests.abuse.attacks import some
from tests.abuse.driving import ANSWER_S, COUNT, SEED
from tests.abuse.hostile_server import IN_A_FILE, TOKEN, HostileGrpc, Listener, elsewhere, trap
from tests.abuse.kinds import Run
from tests.unit.magnetar.cli.test_garbage import COMMANDS

__all__ = ["elsewhere", "trap"]

pytestmark = [pytest.mark.process]

OWN_PORT: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\]):\d{1,5}")
"""What gRPC reads as a port of this machine, and as nothing else."""


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_text(f'["{IN_A_FILE}"]')
    return made


def tls(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """What a server of this machine has, and the authority that clients are told to trust."""
    now = datetime.datetime.now(datetime.UTC)
    authority = new_authority("authority", now)
    issued = new_server(authority, ["localhost", "127.0.0.1"], now)
    for name, data in {"ca": authority.certificate, "crt": issued.certificate, "key": issued.key}.items():
        (folder / name).write_bytes(data)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    return context, folder / "ca"


def answers(
    rng: random.Random, listener: Listener, trap: int, file: Path, more: tuple[str, ...] = ()
) -> hostile_server.Answer:
    """Those for one command or call. *more*: hosts to which nothing may go, either."""
    target = hostile_server.location(rng, listener.port, trap, file, (*hostile_server.HOSTS, *more))
    sends_on = rng.random() < 0.6
    made = hostile_server.answer_of_http(rng, hostile_server.garbage(rng))
    moved = hostile_server.redirect(rng, target)

    def answer(line: str) -> bytes:
        if "/page/brokers" in line:
            return made
        return moved if sends_on else made

    return answer


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_commands(
    scheme: str, tmp_path: Path, secret_file: Path, trap: Listener, elsewhere: None, numbers: Run
) -> None:
    context, trusted = tls(tmp_path) if scheme == "https" else (None, None)
    options = ["--token", TOKEN, *([] if trusted is None else ["--tls-trust", str(trusted)])]
    count = some(COUNT // 3 if scheme == "https" else COUNT, COUNT // 10)
    with Listener(lambda _: b"", context) as listener:
        for number in range(count):
            rng = random.Random(f"{SEED} hostile {scheme} {number}")
            at = "127.0.0.1" if scheme == "http" else rng.choice(["127.0.0.1", "localhost"])
            url = f"{scheme}://{at}:{listener.port}"
            # The trap has no TLS: whoever came with it goes there in no case.
            more = ("127.0.0.1", "localhost") if scheme == "https" else ()
            listener.answer = answers(rng, listener, trap.port, secret_file, more)
            command = rng.choice(COMMANDS)
            done = CliRunner().invoke(main, [*options, *command.split(), "--admin-url", url])
            what = f"input {number} of seed {SEED}, {scheme}: {command}"
            error = done.exception
            assert error is None or isinstance(error, SystemExit), f"{what}: {error!r}"
            assert done.exit_code in (0, 2), f"{what}: {done.output}"
            if done.exit_code:
                assert str(listener.port) in done.output, f"{what}: {done.output!r}"
                assert "Traceback" not in done.output, what
            assert IN_A_FILE not in done.output, what
            assert TOKEN.encode() not in trap.got, f"{what}: its token went to {trap.got!r}"
        assert TOKEN.encode() in listener.got
    numbers.add("hostile server", count)


# ------------------------------------------------------------------------------------ topic API


@pytest.fixture
async def hostile(trap: Listener) -> AsyncIterator[HostileGrpc]:
    made = HostileGrpc(f"{SEED} hostile gRPC")
    await made.start(trap.port)
    yield made
    await made.stop()


async def use(rng: random.Random, client: AsyncClient) -> None:
    """One thing that a program does."""
    kind = rng.randrange(9)
    if kind == 0:
        await client.topics.list()
    elif kind == 1:
        await client.topics.create("t", partitions=rng.choice([0, 3]))
    elif kind == 2:
        await client.topics.stats("t")
    elif kind == 3:
        await client.topics.delete("t", force=rng.random() < 0.5)
    elif kind == 4:
        await client.producer("t", send_timeout_s=1).send(b"x")
    elif kind == 5:
        async with client.consumer("t", "s") as consumer:
            message = await consumer.receive(0.5)
            consumer.ack(message)
    elif kind == 6:
        access: ProducerAccess = rng.choice(["exclusive", "wait_for_exclusive"])
        await client.producer("t", access=access, send_timeout_s=1).send(b"x")
    elif kind == 7:
        async with client.consumer(subscription="s", pattern="t.*") as consumer:
            consumer.ack(await consumer.receive(0.5))
    else:
        async with client.reader("t") as reader:
            await reader.receive(0.5)


async def test_clients_of_the_topic_api(hostile: HostileGrpc, monkeypatch: pytest.MonkeyPatch, numbers: Run) -> None:
    asked: list[str] = []
    channel = Access.channel

    def noted(access: Access, target: str, options: Any) -> Any:
        asked.append(target)
        return channel(access, target, options)

    monkeypatch.setattr(Access, "channel", noted)
    count = some(COUNT // 3, COUNT // 10)

    async def one(number: int) -> None:
        rng = random.Random(f"{SEED} hostile topics {number}")
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                AsyncClient(hostile.address, token=TOKEN, operation_timeout_s=0.5) as client,
            ):
                await use(rng, client)
        except (TopicError, TimeoutError):
            pass
        except Exception as error:
            raise AssertionError(f"input {number} of seed {SEED}: {error!r}") from error

    for first in range(0, count, 25):
        await asyncio.gather(*(one(number) for number in range(first, min(first + 25, count))))
    assert hostile.tokens, "it has to come somewhere"
    assert not [target for target in asked if OWN_PORT.fullmatch(target) is None]
    numbers.add("hostile server", count)


# -------------------------------------------------------------------------------------- brokers


async def test_brokers_among_themselves(secret_file: Path, trap: Listener, elsewhere: None, numbers: Run) -> None:
    count = some(COUNT, COUNT // 5)
    with Listener(lambda _: b"") as listener:
        peers = SimpleNamespace(uses_tls=False, context=None, headers=lambda: {"Authorization": f"Bearer {TOKEN}"})
        known = SimpleNamespace(web_url=lambda *, secure: f"http://127.0.0.1:{listener.port}")

        async def brokers() -> dict[str, Any]:
            return {"b": known}

        owners = Owners(cast(Any, SimpleNamespace(peers=peers)), cast(Any, SimpleNamespace(brokers=brokers)))
        for number in range(count):
            rng = random.Random(f"{SEED} hostile peer {number}")
            # Another port of this machine is no broker of the cluster.
            listener.answer = answers(rng, listener, trap.port, secret_file, ("127.0.0.1",) * 4)
            with contextlib.suppress(Refused):
                said = await owners.ask("GET", f"http://127.0.0.1:{listener.port}/admin/v2/x", "t")
                assert IN_A_FILE not in str(said)
            assert TOKEN.encode() not in trap.got, f"input {number} of seed {SEED}: its token went to {trap.got!r}"
        assert TOKEN.encode() in listener.got
    numbers.add("hostile server", count)
