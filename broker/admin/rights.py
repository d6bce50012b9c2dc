"""What each call of the admin API needs: declared beside its path, asked before the call is worked on.

Rules:

1. A route is only added with the operation that it needs (`Routes`), so that none is forgotten.
2. Nothing is answered before that: a caller without the right gets the same answer whether the thing exists or not.
3. The statuses are Apache's: 403 for what concerns a namespace, 401 for everything else.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiohttp import web

from broker.admin.deputies import HEADER, ask_for, named_in
from broker.admin.http import CALLER, Handler, Refused, caller_of, namespace_of, topic_of
from broker.arrivals import Arrivals
from broker.errors import NotAuthenticated, NotAuthorized
from broker.security.access import Access
from broker.security.authorization import Need, Operation, about_namespace, about_tenant, about_topic
from magnetar_core.topics.topic_name import decode

# Answered with 403 where they are refused: Apache's NamespaceOperation and the policies of namespaces.
_FORBIDDEN: Final = frozenset(
    {
        Operation.CREATE_TOPIC,
        Operation.GET_TOPICS,
        Operation.DELETE_TOPIC,
        Operation.GET_BUNDLE,
        Operation.GET_PERMISSION,
        Operation.GRANT_PERMISSION,
        Operation.REVOKE_PERMISSION,
        Operation.CLEAR_BACKLOG,
        Operation.UNSUBSCRIBE_NAMESPACE,
        Operation.PACKAGES,
        Operation.READ_POLICY,
        Operation.WRITE_POLICY,
        Operation.USE_RESOURCE_GROUP,
    }
)

_PART: Final = re.compile(r"\{([a-z]+)\}")

OperationOf = Operation | Callable[[web.Request], Operation]
"""What a call needs; a function where that depends on more than the route."""

Operations = dict[Any, OperationOf]
"""Handler of a route → what it needs: aiohttp makes a route for HEAD beside that for GET."""


class Routes:
    """Adds the routes of the admin API, with what each needs."""

    def __init__(self, router: web.UrlDispatcher, operations: Operations) -> None:
        self._router = router
        self._operations = operations

    def get(self, path: str, handler: Handler, operation: OperationOf) -> None:
        self._add("GET", path, handler, operation)

    def put(self, path: str, handler: Handler, operation: OperationOf) -> None:
        self._add("PUT", path, handler, operation)

    def post(self, path: str, handler: Handler, operation: OperationOf) -> None:
        self._add("POST", path, handler, operation)

    def delete(self, path: str, handler: Handler, operation: OperationOf) -> None:
        self._add("DELETE", path, handler, operation)

    def any(self, path: str, handler: Handler, operation: OperationOf) -> None:
        """Every method."""
        self._add("*", path, handler, operation)

    def on(self, method: str, path: str, handler: Handler, operation: OperationOf) -> None:
        """This method, `*`: every one."""
        self._add(method, path, handler, operation)

    def _add(self, method: str, path: str, handler: Handler, operation: OperationOf) -> None:
        # One handler may serve several paths: each route has a function of its own, by which its operation is found.
        async def handle(request: web.Request) -> web.StreamResponse:
            return await handler(request)

        self._operations[handle] = operation
        path = _PART.sub(r"{\1:[^/]+}", path)  # else the router takes no braces in a part
        if method == "GET":
            self._router.add_get(path, handle)
        else:
            self._router.add_route(method, path, handle)


def authorization_middleware(access: Access, operations: Mapping[Any, OperationOf], arrivals: Arrivals) -> Any:
    """A middleware that lets a request through if its caller may make it; it stands behind the one that authenticates.

    What the request makes has its turn among those of *arrivals*. A path or method that no route has is answered with
    404 or 405, which reveals nothing.
    """

    @web.middleware
    async def ask(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = request.match_info.route
        if request.match_info.http_exception is None and not access.is_open:
            assert route.handler in operations, f"{route} has no operation"
            needed_operation = operations[route.handler]
            operation = needed_operation if isinstance(needed_operation, Operation) else needed_operation(request)
            try:
                caller = caller_of(request)
                if (named := request.headers.get(HEADER)) is not None:
                    caller = request[CALLER] = access.spoken_for(caller, named_in(named))
            except NotAuthorized as error:
                raise Refused(403 if operation in _FORBIDDEN else 401, str(error)) from None
            ask_for(caller)
            await check(access, request, operation)
        arrivals.work_for(caller_of(request).source(request.remote or "a client"))
        return await handler(request)

    return ask


async def check(access: Access, request: web.Request, operation: Operation) -> None:
    """Return if the caller may do *operation* with what the path names; what a body asks for may need more than the
    call itself. Raises Refused, InvalidTopicName, MetadataFailure."""
    try:
        await access.check(caller_of(request), need_of(request, operation))
    except NotAuthenticated as error:
        raise Refused(401, str(error)) from None
    except NotAuthorized as error:
        raise Refused(403 if operation in _FORBIDDEN else 401, str(error)) from None


def need_of(request: web.Request, operation: Operation) -> Need:
    """*operation* on what the path of *request* names. Raises InvalidTopicName."""
    info = request.match_info
    # Clients encode the name of a subscription twice; the path has been decoded once.
    subscription = decode(info.get("subscription", ""))
    if "topic" in info:
        return about_topic(operation, topic_of(request), subscription)
    if "namespace" in info:
        return about_namespace(operation, namespace_of(request), subscription)
    return about_tenant(operation, info.get("tenant", ""))
