"""The few admin calls that the command line and the demo make. Needs no HTTP library."""

import json
import ssl
import urllib.parse
from collections.abc import Sequence
from typing import Any, Final

from magnetar.inspect.access import CURRENT, Access
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.http.request import Answer, ask
from magnetar_core.runtime.types import MagnetarError
from magnetar_core.security.followed import KnownHosts, redirect_problem
from magnetar_core.topics.topic_name import TopicName, TopicNameError

BROKERS_PATH: Final = "/page/brokers"
"""Where our brokers list the HTTP addresses of all brokers, for every client that is authenticated."""

# Every call is small; a takeover that it has to wait for takes a few seconds.
TIMEOUT_S = 30.0


class AdminError(MagnetarError):
    """The broker refused, or none answered: then *status* is 0."""

    def __init__(self, text: str, status: int = 0, *, is_untrusted: bool = False) -> None:
        """*is_untrusted*: something is there, and TLS with it failed."""
        super().__init__(text)
        self.status = status
        self.is_untrusted = is_untrusted


class AdminClient:
    """Asks one broker, or the first of several that answers."""

    def __init__(
        self, urls: str | Sequence[str], *, timeout_s: float = TIMEOUT_S, access: Access | None = None
    ) -> None:
        """Raises AdminError if *urls* is empty, AccessError. *timeout_s* is that of one answer; *access* says who asks,
        and is that of the running command by default."""
        self._access = CURRENT.get() if access is None else access
        self._context = self._access.context()
        self._urls = [urls] if isinstance(urls, str) else list(urls)
        if not self._urls:
            raise AdminError("there is no address in --admin-url: write http://host:port[,http://host:port…]")
        self._timeout_s = timeout_s
        self._known = KnownHosts(self._urls, self._access.hosts)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON (or text) of an answer, None if it is empty. Raises AdminError."""
        return _decode(self.answer(method, path, body).body)

    def answer(self, method: str, path: str, body: Any = None) -> Answer:
        """The answer of the broker that did not refuse. Raises AdminError."""
        last: AdminError | None = None
        for url in self._urls:
            try:
                return self._answer_of(method, url.rstrip("/") + path, body)
            except AdminError as error:
                if error.status:
                    raise
                last = error
        assert last is not None, "there is at least one URL"
        raise last

    def _answer_of(self, method: str, url: str, body: Any) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        sent_by = ""
        for _ in range(5):  # each redirect leads to the owner; more than a few are a loop
            try:
                answer = ask(
                    method, url, data, timeout_s=self._timeout_s, headers=self._access.headers(),
                    context=self._context if url.startswith("https:") else None,
                )  # fmt: skip
                if answer.status in (301, 302, 307, 308):
                    sent_by = f", to which {url} sends this command on"
                    url = self._followed(url, urllib.parse.urljoin(url, answer.headers.get("Location") or ""))
                    continue
            except ssl.SSLError as error:
                raise AdminError(
                    f"TLS with {url}{sent_by} failed: {error}. Say before the verb whose certificates count: "
                    "--tls-trust or --profile.",
                    is_untrusted=True,
                ) from None
            except (OSError, ValueError) as error:
                raise AdminError(
                    f"no broker answers at {url}{sent_by}: {error}. Is it running? Give its address with --admin-url."
                ) from None
            if answer.status < 300:
                return answer
            reason = _decode(answer.body)
            reason = reason.get("reason", reason) if isinstance(reason, dict) else reason
            raise AdminError(f"{reason or answer.reason} (HTTP {answer.status} from {url})", answer.status)
        raise AdminError(f"{url} redirects in a circle", 508)

    def _followed(self, url: str, target: str) -> str:
        """*target*, to which the broker at *url* sends this command, if it may go there. Raises AdminError."""
        problem = redirect_problem(url, target)
        if problem is None and self._access.headers() and not self._is_known(url, target):
            problem = (
                f"that is not a broker of the cluster ({self._known}), and the credentials are not sent there; if it "
                "is one, add it to --admin-url, or its host to --trusted-hosts"
            )
        if problem is not None:
            raise AdminError(f"{url} sends this command on to {target}: {problem}", 502)
        return target

    def _is_known(self, url: str, target: str) -> bool:
        """Whether credentials may go to *target*. If need be, the broker that sends there is asked for all brokers."""
        if self._known.has(target) or (self._access.trusted and target.startswith("https:")):
            return True
        base = "/".join(url.split("/", 3)[:3])
        try:
            answer = ask("GET", base + BROKERS_PATH, timeout_s=self._timeout_s, headers=self._access.headers(),
                         context=self._context if base.startswith("https:") else None)  # fmt: skip
            listed = parse_json(answer.body) if answer.status == 200 else []
        except (OSError, ValueError):
            listed = []
        if isinstance(listed, list):
            self._known.learn(address for address in listed if isinstance(address, str))
        return self._known.has(target)

    # --------------------------------------------------------------------------------- topics

    @staticmethod
    def path_of(topic: str) -> str:
        """`persistent/<tenant>/<namespace>/<encoded topic>`. Raises AdminError."""
        return _topic(topic).rest_path

    def topics(self, namespace: str) -> list[str]:
        """Full names, partitions one by one."""
        return sorted(self.call("GET", f"/admin/v2/persistent/{_namespace(namespace)}"))

    def partitioned_topics(self, namespace: str) -> list[str]:
        return sorted(self.call("GET", f"/admin/v2/persistent/{_namespace(namespace)}/partitioned"))

    def whole_topics(self, namespace: str) -> tuple[list[str], list[str]]:
        """(topics with partitions, topics without), each named once."""
        partitioned = self.partitioned_topics(namespace)
        known = set(partitioned)
        return partitioned, [name for name in self.topics(namespace) if name.rpartition("-partition-")[0] not in known]

    def partitions(self, topic: str) -> int:
        """0 for a topic without partitions."""
        return int(self.call("GET", f"/admin/v2/{self.path_of(topic)}/partitions")["partitions"])

    def partition_names(self, topic: str) -> list[str]:
        """The topics that brokers serve for *topic*: its partitions, or itself if it has none."""
        count = self.partitions(topic)
        return [f"{topic}-partition-{number}" for number in range(count)] or [topic]

    def schema_path(self, topic: str) -> str:
        """The path of the schemas of *topic*; a partition has those of its topic. Raises AdminError."""
        return f"/admin/v2/schemas/{_topic(topic).base.rest_path.partition('/')[2]}"

    def create_topic(self, topic: str, partitions: int) -> None:
        path = f"/admin/v2/{self.path_of(topic)}"
        if partitions:
            self.call("PUT", path + "/partitions", partitions)
        else:
            self.call("PUT", path)

    def delete_topic(self, topic: str, *, force: bool) -> None:
        path = f"/admin/v2/{self.path_of(topic)}"
        suffix = "/partitions" if self.partitions(topic) else ""
        self.call("DELETE", f"{path}{suffix}?force={str(force).lower()}")

    def stats(self, topic: str) -> dict[str, Any]:
        """The statistics of *topic*; of a partitioned one the sum of its partitions."""
        path = f"/admin/v2/{self.path_of(topic)}"
        if self.partitions(topic):
            return dict(self.call("GET", path + "/partitioned-stats"))
        return dict(self.call("GET", path + "/stats"))

    def owner_url(self, topic: str) -> str:
        """Service URL of the broker that serves *topic* (one partition, or one without)."""
        return str(self.call("GET", f"/lookup/v2/topic/{self.path_of(topic)}")["brokerUrl"])

    # ----------------------------------------------------------------------------- namespaces

    @staticmethod
    def namespace_path(namespace: str) -> str:
        """Raises AdminError."""
        return f"/admin/v2/namespaces/{_namespace(namespace)}"

    def set_deduplication(self, namespace: str, enabled: bool) -> None:
        self.call("POST", f"{self.namespace_path(namespace)}/deduplication", enabled)

    def set_retention(self, namespace: str, *, minutes: int, megabytes: int) -> None:
        """-1 keeps without limit."""
        self.call(
            "POST",
            f"{self.namespace_path(namespace)}/retention",
            {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes},
        )


def _topic(text: str) -> TopicName:
    """Raises AdminError."""
    try:
        return TopicName.parse(text)
    except TopicNameError as error:
        raise AdminError(
            f"{text!r} is not a topic: write name, tenant/namespace/name or persistent://… ({error.reason})"
        ) from None


def _namespace(text: str) -> str:
    """The name as it is written in paths of the admin API."""
    parts = text.split("/")
    if len(parts) != 2 or not all(parts):
        raise AdminError(f"{text!r} is not a namespace: write tenant/namespace")
    return "/".join(urllib.parse.quote(part, safe="") for part in parts)


def _decode(data: bytes) -> Any:
    if not data:
        return None
    try:
        return parse_json(data)
    except ValueError:
        return data.decode(errors="replace")
