"""The OpenAPI document (3.1), made of the calls that are served. No IO.

What holds for every call stands here once: how a caller shows a token, and the answers of the server itself, before a
handler is asked.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from autorecovery.admin.calls import PREFIX, Access, Call, JsonSchema

VERSION: Final = "3.1.0"

_JSON: Final = "application/json"

PROBLEM: Final[JsonSchema] = {
    "title": "Refusal",
    "description": "What is wrong and what helps, for people. Members beside `reason` are facts for programs.",
    "type": "object",
    "properties": {"reason": {"type": "string"}},
    "required": ["reason"],
}

_BOOKIE: Final = "the id of a bookie, for example 10.0.0.3:3181"

# Status → (name of the component, text).
_COMMON: Final[Mapping[int, tuple[str, str]]] = {
    400: ("Malformed", "the path, the query or the body is not as told here"),
    401: ("NoToken", "no token that is known was shown"),
    403: ("Forbidden", "the caller may not change anything, or a page of another site sent the call"),
    413: ("TooLarge", "the body is too large"),
    415: ("NoJson", "the body is not sent as application/json"),
    429: ("TooManyLongCalls", "enough calls that read all records are under way; try again"),
    503: ("Unavailable", "the metadata store or this server cannot answer now; try again"),
}


def statuses_of(call: Call, *, needs_token: bool) -> dict[int, str]:
    """Every status other than success that *call* may have, with what it means."""
    meanings = {400: _COMMON[400][1], 503: _COMMON[503][1]}
    if needs_token:
        meanings[401] = _COMMON[401][1]
    if call.access is Access.WRITE:
        meanings[403] = _COMMON[403][1]
    if call.body is not None:
        meanings |= {413: _COMMON[413][1], 415: _COMMON[415][1]}
    if call.is_long:
        meanings[429] = _COMMON[429][1]
    return dict(sorted((meanings | dict(call.refusals)).items()))


def document(calls: Iterable[Call], *, version: str, needs_token: bool) -> dict[str, Any]:
    """The document. *needs_token*: tokens are configured; without them calls are answered without one."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for call in calls:
        methods = paths.setdefault(PREFIX + call.path, {})
        assert call.method.lower() not in methods, f"two calls for {call.method} {call.path}"
        methods[call.method.lower()] = _operation(call, schemas, needs_token=needs_token)
    problem = {_JSON: {"schema": _with_references(PROBLEM, schemas)}}
    components: dict[str, Any] = {
        "schemas": dict(sorted(schemas.items())),
        "responses": {name: {"description": text, "content": problem} for name, text in _COMMON.values()},
    }
    description: dict[str, Any] = {
        "openapi": VERSION,
        "info": {
            "title": "Magnetar management",
            "version": version,
            "description": "Auto-recovery and the life of bookies: states, serving, cookies, repair.",
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": components,
    }
    if needs_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        description["security"] = [{"token": []}]
    return description


def _operation(call: Call, schemas: dict[str, Any], *, needs_token: bool) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(call.status): {
            "description": "done" if call.access is Access.WRITE else "the answer",
            "content": {_JSON: {"schema": _with_references(call.answer, schemas)}},
        }
    }
    for status, text in statuses_of(call, needs_token=needs_token).items():
        if status in _COMMON and _COMMON[status][1] == text:
            responses[str(status)] = {"$ref": f"#/components/responses/{_COMMON[status][0]}"}
        else:
            content = {_JSON: {"schema": _with_references(PROBLEM, schemas)}}
            responses[str(status)] = {"description": text, "content": content}
    operation: dict[str, Any] = {
        "operationId": call.name,
        "tags": [call.subject],
        "summary": call.summary,
        "responses": dict(sorted(responses.items())),
    }
    parameters = [_parameter(name, "path", call.parameters.get(name, _BOOKIE)) for name in call.path_parameters]
    parameters += [_parameter(name, "query", text) for name, text in call.query.items()]
    if parameters:
        operation["parameters"] = parameters
    if call.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": _with_references(call.body, schemas)}},
        }
    return operation


def _parameter(name: str, place: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "description": text, "schema": {"type": "string"}}


def _with_references(schema: Any, schemas: dict[str, Any]) -> Any:
    """*schema* with each part that has a title replaced by a reference to the component of that name."""
    if isinstance(schema, Mapping):
        inner = {name: _with_references(value, schemas) for name, value in schema.items()}
        if not isinstance(title := schema.get("title"), str):
            return inner
        name = "".join(title.split())
        assert schemas.setdefault(name, inner) == inner, f"two schemas have the title {title!r}"
        return {"$ref": f"#/components/schemas/{name}"}
    if isinstance(schema, list | tuple):
        return [_with_references(value, schemas) for value in schema]
    return schema
