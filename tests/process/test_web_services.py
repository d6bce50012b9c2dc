"""The services of docs/topic-api.md: in uvicorn and in gunicorn, stopped by SIGTERM in the middle of their requests."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

import magnetar
from magnetar.testing.servers import TopicPlace
from tests.support.pages import blocks_of
from tests.support.processes import until
from tests.support.pypi import ROOT, Missing, before_ours, packages

pytestmark = pytest.mark.process

PAGE: Final = (ROOT / "docs" / "topic-api.md").read_text()
SECTION: Final = PAGE[PAGE.index("### In a web service") :]


@pytest.fixture(scope="module")
def web() -> Path:
    try:
        return packages("web")
    except Missing as error:
        pytest.skip(f"no services on the web: {error}")


Post = Callable[[int], str]


class Service:
    """A service of the page in a folder, at a topic of the test's own."""

    def __init__(self, folder: Path, web: Path, place: TopicPlace) -> None:
        self.topic = place.topic("web-orders")
        self._folder = folder
        self._environment = {**os.environ, **before_ours(web), "HOME": str(folder)}
        for block in blocks_of(SECTION):
            if block.language == "python" and block.file:
                text = block.text.replace("localhost:6648", place.grpc_url).replace("web-orders", self.topic)
                (folder / block.file).write_text(text)

    @contextlib.contextmanager
    def run(self, module: str, *arguments: str, address: str) -> Iterator[tuple[subprocess.Popen[str], Post]]:
        """*module* with *arguments*, and *address*, in which `PORT` stands for a free port; and how to place an order
        there: it returns the message id. What it writes is in the file `said`."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", module, *arguments, *address.replace("PORT", str(port)).split()]
        with (self._folder / "said").open("a") as said:
            process = subprocess.Popen(
                command, cwd=self._folder, env=self._environment, stdout=said, stderr=subprocess.STDOUT, text=True
            )
        try:
            until(lambda: _is_open(port), f"{module} listens", 60)
            yield process, lambda number: _post(port, number)
        finally:
            process.kill()
            process.wait()

    @property
    def said(self) -> str:
        return (self._folder / "said").read_text()


def _is_open(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.suppress(OSError), contextlib.closing(connection):
        connection.connect()
        return True
    return False


def _post(port: int, number: int) -> str:
    """Raises OSError, HTTPException if the service is gone."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        body = json.dumps({"id": number, "customer": f"customer-{number % 7}"})
        connection.request("POST", "/orders", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, text
        return str(json.loads(text)["id"])


@pytest.fixture
def service(tmp_path: Path, web: Path, volatile_pulsar_server: TopicPlace) -> Service:
    return Service(tmp_path, web, volatile_pulsar_server)


def stopped_in_the_middle(process: subprocess.Popen[str], post: Post, numbers: Sequence[int]) -> dict[int, str]:
    """Several clients place orders, and SIGTERM comes when a third of them is stored. Returns all that were."""
    stored = dict[int, str]()

    def place(number: int) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            stored[number] = post(number)
            if len(stored) == len(numbers) // 3:
                process.send_signal(signal.SIGTERM)

    with ThreadPoolExecutor(4) as clients:
        list(clients.map(place, numbers))
    assert process.wait(timeout=30) in (0, -signal.SIGTERM)
    assert len(numbers) // 3 <= len(stored)
    return stored


def stored_orders(place: TopicPlace, topic: str) -> dict[str, int]:
    """Message id → the number of its order."""
    orders = dict[str, int]()
    with magnetar.Client(place.grpc_url) as client, client.reader(topic, value=magnetar.Json) as reader:
        while reader.has_more():
            message = reader.receive(10)
            value: Any = message.value
            orders[str(message.id)] = value["id"]
    return orders


def test_a_service_in_uvicorn_loses_and_repeats_nothing_at_sigterm(
    service: Service, volatile_pulsar_server: TopicPlace
) -> None:
    with service.run("uvicorn", "service:app", address="--port PORT") as (process, post):
        stored = stopped_in_the_middle(process, post, range(60))
    with service.run("uvicorn", "service:app", address="--port PORT") as (process, post):
        stored[60] = post(60)
        with magnetar.Client(volatile_pulsar_server.grpc_url) as client:
            until(lambda: "billed 60" in service.said, "the last one is billed", 30)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) in (0, -signal.SIGTERM)
            assert client.topics.stats(service.topic)["subscriptions"]["billing"]["msgBacklog"] == 0
    orders = stored_orders(volatile_pulsar_server, service.topic)
    assert stored.items() <= {number: id_ for id_, number in orders.items()}.items()
    billed = [int(number) for number in re.findall(r"billed (\d+)", service.said)]
    assert sorted(billed) == sorted(orders.values()), "each once"
    assert "Traceback" not in service.said


def test_a_service_in_gunicorn_has_a_client_in_each_worker(
    service: Service, volatile_pulsar_server: TopicPlace
) -> None:
    with service.run("gunicorn", "shop:app", address="--bind 127.0.0.1:PORT") as (process, post):
        stored = stopped_in_the_middle(process, post, range(30))
    orders = stored_orders(volatile_pulsar_server, service.topic)
    assert stored.items() <= {number: id_ for id_, number in orders.items()}.items()
    assert "Traceback" not in service.said


def test_a_client_of_before_the_fork_says_what_the_page_says(
    service: Service, tmp_path: Path, volatile_pulsar_server: TopicPlace
) -> None:
    with (tmp_path / "shop.py").open("a") as shop:
        shop.write(f'app.extensions["magnetar"] = magnetar.Client("{volatile_pulsar_server.grpc_url}")\n')
    (tmp_path / "gunicorn.conf.py").write_text("workers, preload_app = 2, True\n")
    with service.run("gunicorn", "shop:app", address="--bind 127.0.0.1:PORT") as (process, post):
        with pytest.raises(AssertionError, match="Internal Server Error"):
            post(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    (error,) = (block.text for block in blocks_of(SECTION) if "ClientClosed" in block.text)
    assert " ".join(error.split()) in service.said
