"""What all subjects of the admin API share: valid parts of paths, JSON of requests and answers, the status of errors.

Success without a body is 204, errors are `{"reason": "…"}`.
"""

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web

from broker.admin.bodies import BadJson
from broker.errors import (
    BrokerError,
    ConsumerBusy,
    IncompatibleSchema,
    InvalidTopicName,
    NotAllowed,
    NotAuthenticated,
    NotAuthorized,
    NotReady,
    ProducerBusy,
    SubscriptionNotFound,
    TopicNotFound,
)
from broker.names import parse_topic
from broker.policies.permissions import NotAListOfNames
from broker.policies.rules import InvalidQuorums, InvalidRetention, NoSuchCluster, NotAnObject
from broker.policies.values import NotAValue
from broker.records.json_records import InvalidRecord, NoRecord, RecordError
from broker.settings.dynamic import NotDynamic
from broker.tenancy.changes import ClusterInUse, ResourceGroupInUse
from broker.tenancy.partitions import FewerPartitions
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, VersionConflict
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.http.bodies import BODIES, BodyRefused
from magnetar_core.runtime.http.server import foreign_origin, unwanted_type
from magnetar_core.runtime.types import Corruption
from magnetar_core.security.caller import TRUSTED, Caller
from magnetar_core.topics.topic_name import ENTITY_CHARS_MAX, PERSISTENT, TopicName
from managed_ledger.errors import ManagedLedgerError

log = logging.getLogger(__name__)

ADMIN: Final = "/admin/v2"
"""The beginning of all paths, except those of lookups and metrics."""

# While a topic is deleted by force, connected producers may make its partitions again. They are deleted this often.
DELETE_ROUNDS: Final = 5

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


CALLER: Final = web.RequestKey("caller", Caller)
"""Set by the middleware that authenticates, where authentication is on."""


def caller_of(request: web.Request) -> Caller:
    """As whom the request is authenticated."""
    caller: Caller = request.get(CALLER, TRUSTED)
    return caller


class Refused(Exception):
    """A request is refused with this HTTP status; the text is the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


# ------------------------------------------------------------------------------------------ paths

# Patterns for the parts of a path, after `%2F` and the like are decoded, and the text for the refusal. Names of a
# cluster, tenant, namespace or topic become paths in the metadata store: none has a `/` in it, or is `.` or `..`.
_ENTITY_PART: Final = (
    re.compile(rf"(?!\.{{1,2}}\Z)[-=:.\w]{{1,{ENTITY_CHARS_MAX}}}", re.ASCII), "letters, digits and -=:._ are"
)  # fmt: skip
_NAME_PART: Final = (
    re.compile(r"(?!\.{1,2}\Z)[^/\x00-\x1f\x7f]+"),
    "it has no `/` and no control characters",
)
_ANY_PART: Final = (re.compile(r"[^\x00-\x1f\x7f]+"), "it is not empty and has no control characters")
_PARTS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "cluster": _ENTITY_PART,
    "tenant": _ENTITY_PART,
    "namespace": _ENTITY_PART,
    "policy": _ENTITY_PART,
    "version": _NAME_PART,
    "domain": _ENTITY_PART,
    "ledger": (re.compile(r"[0-9]{1,18}"), "it is the id of a ledger"),
    "entry": (re.compile(r"[0-9]{1,18}"), "it is the number of an entry"),
    "bundle": (
        re.compile(r"0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}|LARGEST|HOT"),
        "it is 0xXXXXXXXX_0xXXXXXXXX; to be split also LARGEST or HOT",
    ),
    "count": (re.compile(r"[0-9]{1,9}"), "it is a whole number"),
    "timestamp": (re.compile(r"[0-9]{1,18}"), "it is a time in milliseconds"),
    "allocator": _NAME_PART,
    "bookie": _NAME_PART,
    "broker": _NAME_PART,
    "topic": (re.compile(r"[^/]+"), "it has no `/`"),  # what a topic may be called is known where its name is parsed
    "group": _NAME_PART,
    "key": _NAME_PART,
    "value": _ANY_PART,
    "role": _ANY_PART,
    # It is encoded once more before it becomes a path; what it may be called is known where it is made.
    "subscription": (re.compile(r".+", re.DOTALL), "it is not empty"),
    "rest": (re.compile(r".*", re.DOTALL), ""),
}
# Limit for each part. ZooKeeper's limit for a whole path is below 1 MiB.
_PART_BYTES_MAX: Final = 3 * 1024


@web.middleware
async def check_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse malformed names in paths and requests of foreign origin before they reach a handler."""
    for part, text in request.match_info.items():
        pattern, right_kinds = _PARTS[part]
        if len(text) > _PART_BYTES_MAX or pattern.fullmatch(text) is None:
            raise Refused(412, f"{part} name {text[:200]!r} is not valid: {right_kinds}")
    if (reason := foreign_origin(request)) is not None:
        raise Refused(403, reason)
    # What is refused anyway is refused by its name, not for its body: the tools send files there, as multipart.
    if not refuses_its_subject(request) and (reason := unwanted_type(request)) is not None:
        raise Refused(415, reason)
    return await handler(request)


def namespace_of(request: web.Request) -> str:
    """`tenant/namespace`."""
    return f"{request.match_info['tenant']}/{request.match_info['namespace']}"


def topic_of(request: web.Request) -> TopicName:
    """The topic that the path names. Raises InvalidTopicName."""
    info = request.match_info
    return parse_topic(f"{info.get('domain', PERSISTENT)}://{info['tenant']}/{info['namespace']}/{info['topic']}")


def is_forced(request: web.Request) -> bool:
    return request.query.get("force") == "true"


def with_system_topics(request: web.Request) -> bool:
    """Whether a list of topics has those of the brokers too."""
    return request.query.get("includeSystemTopic") == "true"


SUBJECTS: Final = frozenset({
    "bookies", "broker-stats", "brokers", "clusters", "functions", "namespaces", "non-persistent", "persistent",
    "resource-quotas", "resourcegroups", "schemas", "tenants", "worker", "worker-stats",
})  # fmt: skip
"""What there is below `/admin/v2/`, with any broker."""


async def not_there(request: web.Request) -> web.StreamResponse:
    """Answer 501 for paths that Apache's brokers serve and this one does not, 404 for subjects that no broker has.

    OPTIONS is answered with the methods of the path, and PATCH, which no path has, with 405, as by Apache's brokers.
    """
    parts = request.path.split("/")
    if len(parts) > 3 and parts[2] == "v2" and parts[3] not in SUBJECTS:
        raise Refused(404, f"{request.path}: there is no {parts[3][:100]!r} in the admin API of brokers")
    if request.method in ("OPTIONS", "PATCH") and (methods := await _methods_of(request)):
        if request.method == "OPTIONS":
            return web.Response(text=", ".join(methods), headers={"Allow": ",".join(methods)})
        allow = {"Allow": ",".join(methods)}
        return web.Response(status=405, body=compact_json({"reason": "Method Not Allowed"}), headers=allow,
                            content_type="application/json")  # fmt: skip
    raise Refused(501, f"{request.method} {request.path} is not supported by this broker")


async def _methods_of(request: web.Request) -> list[str]:
    """The methods that the path has, and OPTIONS; empty if no route but the last has it."""
    methods: set[str] = set()
    for resource in request.app.router.resources():
        methods |= (await resource.resolve(request))[1]
    methods.discard("*")
    return [*sorted(methods), "OPTIONS"] if methods else []


_FUNCTIONS: Final = "Pulsar Functions are not served by this broker"
_TRANSACTIONS: Final = "Transactions are not served by this broker"
_PACKAGES: Final = "Packages are not served by this broker: they are for Pulsar Functions"

# The statuses are those of an Apache broker on which the subject is switched off.
REFUSED_SUBJECTS: Final[Mapping[str, Refused]] = {
    "functions": Refused(409, _FUNCTIONS),
    "source": Refused(409, "Sources are not served by this broker: they run as Pulsar Functions"),
    "sources": Refused(409, "Sources are not served by this broker: they run as Pulsar Functions"),
    "sink": Refused(409, "Sinks are not served by this broker: they run as Pulsar Functions"),
    "sinks": Refused(409, "Sinks are not served by this broker: they run as Pulsar Functions"),
    "worker": Refused(409, _FUNCTIONS),
    "worker-stats": Refused(409, _FUNCTIONS),
    "packages": Refused(503, _PACKAGES),
    "transactions": Refused(503, _TRANSACTIONS),
}
"""What Apache's brokers serve below `/admin/VERSION/`, and this one never does."""


def refuses_its_subject(request: web.Request) -> bool:
    """Whether the path is below one of `REFUSED_SUBJECTS`; what is asked there makes no difference."""
    parts = request.path.split("/")
    return parts[1] == "admin" and len(parts) > 3 and parts[3] in REFUSED_SUBJECTS


def refusal_handler(refusal: Refused) -> Handler:
    """A handler that always answers with this refusal."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        raise Refused(refusal.status, str(refusal))

    return refuse


# ------------------------------------------------------------------------------------------ bodies


async def bytes_of(request: web.Request) -> bytes:
    """The body of a request whose caller has been authenticated. Raises Refused."""
    try:
        return await BODIES.read(request, request.client_max_size)
    except BodyRefused as error:
        raise Refused(error.status, str(error)) from None


async def text_of(request: web.Request) -> str:
    """The body as text. Raises Refused; ValueError or LookupError if it is none."""
    return (await bytes_of(request)).decode(request.charset or "utf-8")


async def body_of(request: web.Request) -> Any:
    """The JSON of a request; None if its body is empty. Raises Refused (400)."""
    try:
        text = await text_of(request)
        return parse_json(text) if text.strip() else None
    except (ValueError, LookupError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None


async def object_of(request: web.Request) -> dict[str, Any]:
    """The JSON object of a request; an empty body counts as an empty object. Raises Refused (400)."""
    return as_object(await body_of(request) or {})


def as_object(value: Any) -> dict[str, Any]:
    """*value*, if it is a JSON object. Raises Refused (400)."""
    if not isinstance(value, dict):
        raise Refused(400, "a JSON object is needed")
    return value


def json_answer(value: object, status: int = 200) -> web.Response:
    """An answer whose type is named as Apache names it: without a character set. Compact, as Apache's: people's
    scripts look for `"msgBacklog":10`."""
    return web.Response(body=compact_json(value), status=status, content_type="application/json")


def compact_json(value: object) -> bytes:
    """The bytes of JSON without spaces, and with texts as they are."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def word_answer(text: str) -> web.Response:
    """An answer of one bare word, which Apache labels as JSON too."""
    return web.Response(body=text.encode(), content_type="application/json")


def done() -> web.Response:
    """Success without a body."""
    return web.Response(status=204)


# ------------------------------------------------------------------------------------------ errors

# The entry of an error's nearest base class counts.
_STATUSES: Final[Mapping[type[Exception], int]] = {
    TopicNotFound: 404,
    SubscriptionNotFound: 404,
    NotAllowed: 412,
    ConsumerBusy: 412,
    ProducerBusy: 412,  # the name of a subscription, here
    InvalidTopicName: 412,
    IncompatibleSchema: 409,
    NotAuthenticated: 401,
    NotAuthorized: 403,
    NotReady: 503,
    BrokerError: 500,
    NoRecord: 404,
    ClusterInUse: 412,
    ResourceGroupInUse: 412,
    NotAnObject: 400,
    NotAListOfNames: 400,
    InvalidQuorums: 400,
    InvalidRetention: 400,
    NotAValue: 400,
    NoSuchCluster: 403,
    NotDynamic: 412,
    InvalidRecord: 412,
    FewerPartitions: 422,
    RecordError: 409,
    BadJson: 412,
}


def status_of(error: BrokerError | RecordError | BadJson) -> int:
    """The HTTP status for *error*."""
    return next(_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)


def refusal(status: int, reason: str) -> web.Response:
    """How all calls are refused."""
    return json_answer({"reason": reason}, status=status)


# Below that many bytes an answer is not compressed (Jetty's limit in Apache's brokers).
_GZIP_BYTES_MIN: Final = 32


@web.middleware
async def compress(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Compress texts for those that take gzip, as Prometheus does."""
    answer = await handler(request)
    if (
        request.method == "GET"
        and isinstance(answer, web.Response)
        and answer.content_type.startswith(("application/json", "text/"))
        and (answer.content_length or 0) >= _GZIP_BYTES_MIN
    ):
        answer.headers["Vary"] = "Accept-Encoding"
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            answer.enable_compression(web.ContentCoding.gzip)
    return answer


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception into an HTTP answer."""
    try:
        return await handler(request)
    except Refused as error:
        return refusal(error.status, str(error))
    except (BrokerError, RecordError, BadJson) as error:
        return refusal(status_of(error), str(error))
    except VersionConflict as error:
        return refusal(409, f"changed at the same time: {error}")
    except (MetadataError, ManagedLedgerError, Corruption) as error:
        log.warning("%s %s: %s", request.method, request.path, error)
        return refusal(500, str(error))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return refusal(error.status, error.text or error.reason)
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        return refusal(500, f"{type(error).__name__}: {error}")
