import socket
import threading
from collections.abc import Iterator

import pytest

from magnetar.inspect.access import Access
from magnetar.inspect.broker_admin import BROKERS_PATH, AdminClient, AdminError
from tests.support.http_fake import HttpFake, http_fake


@pytest.fixture
def fake() -> Iterator[HttpFake]:
    with http_fake() as made:
        yield made


@pytest.fixture
def dead_url() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"


@pytest.mark.parametrize(
    ("topic", "path"),
    [
        ("t", "persistent/public/default/t"),
        ("a/b/c", "persistent/a/b/c"),
        ("persistent://a/b/c", "persistent/a/b/c"),
        ("non-persistent://a/b/c", "non-persistent/a/b/c"),
        ("persistent://a/b/c d+e%f", "persistent/a/b/c%20d%2Be%25f"),
        ("ü", "persistent/public/default/%C3%BC"),
    ],
)
def test_a_topic_becomes_a_path(topic: str, path: str) -> None:
    assert AdminClient.path_of(topic) == path


@pytest.mark.parametrize("topic", ["", "a/b", "persistent://", "persistent://a/b", "a//c", "/", "persistent:///b/c"])
def test_what_is_not_a_topic_is_refused(topic: str) -> None:
    with pytest.raises(AdminError, match="is not a topic: write"):
        AdminClient.path_of(topic)


@pytest.mark.parametrize("topic", ["persistent://a/c/b/t", "a/c/b/t"])
def test_names_with_a_cluster_are_refused_with_that_reason(topic: str) -> None:
    with pytest.raises(AdminError, match="names with a cluster"):
        AdminClient.path_of(topic)


@pytest.mark.parametrize("namespace", ["", "a", "a/b/c", "/", "a/"])
def test_what_is_not_a_namespace_is_refused(namespace: str) -> None:
    with pytest.raises(AdminError, match="is not a namespace: write tenant/namespace"):
        AdminClient("http://127.0.0.1:1").topics(namespace)


def test_method_and_body_survive_redirects(fake: HttpFake) -> None:
    path = "/admin/v2/persistent/public/default/t/partitions"
    fake.answer("PUT", path, status=307, Location=f"{fake.url}{path}?authoritative=true")
    fake.answer("PUT", f"{path}?authoritative=true", status=307, Location=f"{path}?authoritative=false")
    fake.answer("PUT", f"{path}?authoritative=false", status=204)
    AdminClient(fake.url).create_topic("t", 3)
    assert [(asked.method, asked.body) for asked in fake.asked] == [("PUT", 3)] * 3


def test_a_circle_of_redirects_ends(fake: HttpFake) -> None:
    fake.answer("GET", "/x", status=307, Location="/x")
    with pytest.raises(AdminError, match="redirects in a circle"):
        AdminClient(fake.url).call("GET", "/x")
    assert len(fake.asked) == 5


def test_the_first_broker_that_answers_is_asked(fake: HttpFake, dead_url: str) -> None:
    fake.answer("GET", "/x", [1])
    assert AdminClient([dead_url, fake.url + "/", dead_url]).call("GET", "/x") == [1]


def test_a_refusal_is_not_asked_of_another_broker(fake: HttpFake, dead_url: str) -> None:
    fake.answer("GET", "/x", {"reason": "no such thing"}, status=404)
    with pytest.raises(AdminError, match=r"^no such thing \(HTTP 404 from ") as refused:
        AdminClient([fake.url, fake.url]).call("GET", "/x")
    assert refused.value.status == 404
    assert len(fake.asked) == 1


@pytest.mark.parametrize(
    ("body", "text"), [(b"<html>", "<html>"), (None, "Internal Server Error"), ([1], "1"), ({"other": 1}, "other")]
)
def test_a_refusal_without_reason_is_shown_as_it_is(fake: HttpFake, body: object, text: str) -> None:
    fake.answer("GET", "/x", body, status=500)
    with pytest.raises(AdminError, match=text):
        AdminClient(fake.url).call("GET", "/x")


def test_nobody_there_is_said_with_what_to_do(dead_url: str) -> None:
    with pytest.raises(AdminError, match=rf"no broker answers at {dead_url}/x: .*refused.*--admin-url") as refused:
        AdminClient([dead_url, dead_url]).call("GET", "/x")
    assert refused.value.status == 0


def test_who_is_there_and_fails_with_tls_is_not_called_nobody(fake: HttpFake) -> None:
    with pytest.raises(AdminError, match=r"TLS with https:.* failed: .*--tls-trust") as refused:
        AdminClient(fake.url.replace("http:", "https:")).call("GET", "/x")
    assert (refused.value.status, refused.value.is_untrusted) == (0, True)


@pytest.mark.parametrize("url", ["nonsense", "http://", "http://127.0.0.1:port", "ftp://127.0.0.1:1", ""])
def test_an_address_that_is_none_is_said_in_one_line(url: str) -> None:
    with pytest.raises(AdminError, match="--admin-url"):
        AdminClient(url).call("GET", "/x")


def test_a_port_that_does_not_speak_http_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\0\0\0\5nonsense\n\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(AdminError, match=r"does not speak HTTP.*--admin-url"):
            AdminClient(f"http://127.0.0.1:{server.getsockname()[1]}").call("GET", "/x")
        thread.join()


def test_answers_are_json_text_or_nothing(fake: HttpFake) -> None:
    admin = AdminClient(fake.url)
    fake.answer("GET", "/json", {"a": 1})
    fake.answer("GET", "/text", b"ok")
    fake.answer("GET", "/nothing", status=204)
    assert [admin.call("GET", path) for path in ("/json", "/text", "/nothing")] == [{"a": 1}, "ok", None]


def test_the_verbs_ask_what_the_books_say(fake: HttpFake) -> None:
    admin = AdminClient(fake.url)
    topic = "/admin/v2/persistent/public/default/t"
    fake.answer("GET", f"{topic}/partitions", {"partitions": 0})
    fake.answer("DELETE", f"{topic}?force=true", status=204)
    fake.answer("GET", f"{topic}/stats", {"msgInCounter": 1})
    fake.answer("POST", "/admin/v2/namespaces/public/default/deduplication", status=204)
    fake.answer("POST", "/admin/v2/namespaces/public/default/retention", status=204)
    fake.answer("GET", "/lookup/v2/topic/persistent/public/default/t", {"brokerUrl": "pulsar://h:1"})
    admin.delete_topic("t", force=True)
    assert admin.stats("t") == {"msgInCounter": 1}
    admin.set_deduplication("public/default", True)
    admin.set_retention("public/default", minutes=-1, megabytes=7)
    assert admin.owner_url("t") == "pulsar://h:1"
    fake.answer("GET", f"{topic}/partitions", {"partitions": 2})
    fake.answer("DELETE", f"{topic}/partitions?force=false", status=204)
    fake.answer("GET", f"{topic}/partitioned-stats", {"msgInCounter": 2})
    admin.delete_topic("t", force=False)
    assert admin.stats("t") == {"msgInCounter": 2}
    bodies = [asked.body for asked in fake.asked if asked.method == "POST"]
    assert bodies == [True, {"retentionTimeInMinutes": -1, "retentionSizeInMB": 7}]


def test_partitions_share_the_schema_of_their_topic() -> None:
    admin = AdminClient("http://127.0.0.1:1")
    assert admin.schema_path("t") == "/admin/v2/schemas/public/default/t"
    assert admin.schema_path("persistent://a/b/t-partition-3") == "/admin/v2/schemas/a/b/t"
    assert admin.schema_path("a/b/t-partition-03") == "/admin/v2/schemas/a/b/t-partition-03"
    assert admin.schema_path("a/b/t-partition-x") == "/admin/v2/schemas/a/b/t-partition-x"


def test_a_topic_is_itself_or_its_partitions(fake: HttpFake) -> None:
    admin = AdminClient(fake.url)
    topic = "/admin/v2/persistent/public/default/t"
    fake.answer("GET", f"{topic}/partitions", {"partitions": 0})
    assert admin.partition_names("t") == ["t"]
    fake.answer("GET", f"{topic}/partitions", {"partitions": 2})
    assert admin.partition_names("t") == ["t-partition-0", "t-partition-1"]


def test_without_an_address_nobody_is_asked() -> None:
    with pytest.raises(AdminError, match="there is no address in --admin-url"):
        AdminClient([])


# ------------------------------------------------------------------------------------------ where credentials go

WITH_TOKEN = Access(token="secret")


def elsewhere(fake: HttpFake) -> str:
    """*fake* under a name that is none of its cluster."""
    return fake.url.replace("127.0.0.1", OTHER_HOST)


OTHER_HOST = socket.gethostname()


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpFake]:
    """A server of another host, which is reached here."""
    found = socket.getaddrinfo

    def here(host: object, *more: object, **named: object) -> object:
        return found("127.0.0.1" if host == OTHER_HOST else host, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", here)
    with http_fake() as made:
        yield made


def test_a_token_goes_to_no_host_of_another_cluster(fake: HttpFake, other: HttpFake) -> None:
    fake.answer("GET", "/x", status=307, Location=elsewhere(other) + "/x")
    fake.answer("GET", BROKERS_PATH, [fake.url, "http://b2:8080"])
    other.answer("GET", "/x", [])
    with pytest.raises(AdminError) as caught:
        AdminClient(fake.url, access=WITH_TOKEN).call("GET", "/x")
    assert fake.url in str(caught.value)
    assert elsewhere(other) in str(caught.value)
    assert "--trusted-hosts" in str(caught.value)
    assert not other.asked
    assert AdminClient(fake.url).call("GET", "/x") == [], "without credentials there is nothing to keep"


def test_it_goes_to_brokers_that_the_cluster_lists_and_to_hosts_that_the_user_names(
    fake: HttpFake, other: HttpFake
) -> None:
    fake.answer("GET", "/x", status=307, Location=elsewhere(other) + "/x")
    other.answer("GET", "/x", ["there"])
    for access, urls in (
        (WITH_TOKEN._replace(hosts=(OTHER_HOST,)), [fake.url]),
        (WITH_TOKEN, [fake.url, elsewhere(other)]),
    ):
        assert AdminClient(urls, access=access).call("GET", "/x") == ["there"]
    assert [one.path for one in fake.asked] == ["/x"] * 2, "nothing more is asked for that"
    fake.answer("GET", BROKERS_PATH, [fake.url, elsewhere(other)])
    assert AdminClient(fake.url, access=WITH_TOKEN).call("GET", "/x") == ["there"]


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x"])
def test_nothing_but_http_is_opened(fake: HttpFake, target: str) -> None:
    fake.answer("GET", "/x", status=307, Location=target)
    with pytest.raises(AdminError, match="only http and https are opened"):
        AdminClient(fake.url).call("GET", "/x")
    with pytest.raises(AdminError, match="neither http nor https"):
        AdminClient(target).call("GET", "/x")
