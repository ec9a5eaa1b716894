"""The management API as an ASGI application: the tables of `broker.management` as routes.

    reads    signed in -> Reading -> document -> JSON
    writes   signed in -> body -> plan -> passwords hashed in a thread -> commands ordered -> 201 or 204
    acts     signed in -> body -> plan -> a call of the node as the user -> answer
    operate  signed in -> body -> plan -> an operation of the node -> what it tells
    inspect  signed in -> query or body -> a request to a queue's owner, by way of the node -> what came of it

What is answered, and to whom, is decided in the tables, which know nothing of HTTP; here are bodies, headers, errors
and the waiting. Nothing that a client sends ends in a 500 unless it is our own mistake, and then it says nothing of
what was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

import msgspec
import structlog
from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from clusterbroker.broker.management import (
    amqp_operations,
    bodies,
    delayed,
    messages,
    operations,
    osrdyne,
    pool_history,
    pool_reasons,
    pool_requests,
    reads,
    writes,
)
from clusterbroker.broker.management.errors import Refused, bad_request, object_not_found, of_order
from clusterbroker.broker.management.forms import BODY_BYTES_MAX
from clusterbroker.broker.management.principals import MANAGEMENT, Principal
from clusterbroker.broker.management.reading import Reading
from clusterbroker.broker.management.replica import Replica
from clusterbroker.broker.server.audit import Audit
from clusterbroker.broker.server.log import Bucket
from clusterbroker.broker.stats.as_user import Ask, AsUser
from clusterbroker.broker.stats.inspection import DELETED, LOOKS, UNKNOWN_WHAT, Result, decode_result
from clusterbroker.broker.stats.inspection import Request as InspectRequest
from clusterbroker.broker.stats.inspection import encode as encode_request
from clusterbroker.broker.version import VERSION
from clusterbroker.cluster import passwords
from clusterbroker.cluster.errors import Unavailable

from . import local, metric_pages, routes, web_page
from .auth import REALM, LoginFailed, SignIn
from .hashing import Hashing
from .middleware.audit import COMMANDS, FACTS, PRINCIPAL, REFUSED, AuditMiddleware
from .middleware.bodies import Room, fields_of
from .middleware.headers import HeadersMiddleware
from .operations import NodeOperations, OrderError
from .pool_search import PoolSearch
from .routes import Endpoint, page

if TYPE_CHECKING:
    from clusterbroker.broker.oauth2.tokens import Tokens

T = TypeVar("T")
FOLDED_S: Final = 2.0
QUICK_MS: Final = 1000
"""Who asks is asked for once when the body is there so soon, and nothing was changed meanwhile."""
LOGIN_BYTES_MAX: Final = 16 << 10
LOG: Final = structlog.get_logger("management")


def create_app(
    replica: Replica,
    node: NodeOperations,
    *,
    now_ms: Callable[[], int],
    loopback_users: tuple[str, ...] = ("guest",),
    password_cost: int = passwords.COST_DEFAULT,
    tokens: Tokens | None = None,
    audit: Audit | None = None,
    knows_proxies: bool = True,
) -> FastAPI:
    """The application. `now_ms`: the wall clock, ms since 1970; `password_cost`: of passwords that are set; `tokens`:
    of OAuth 2, None: they are not taken; `audit`: who hears of operations; not `knows_proxies`: as `SignIn` says."""

    def sign_in() -> SignIn:
        loop = asyncio.get_running_loop()
        return SignIn(replica, loop, now_ms, node.order, loopback_users, tokens, password_cost, knows_proxies)

    shell = _Shell(replica, node, now_ms, sign_in, Hashing(password_cost))
    replica.folded = shell.folded.set
    app = FastAPI(
        title="clusterbroker management API",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        redirect_slashes=False,
        lifespan=shell.lifespan,
    )
    app.state.room = Room()
    app.state.failures = Bucket(time.monotonic())
    app.state.shell = shell
    app.router.routes.extend(_routes())
    web_page.add(app, web_page.PAGE)
    metric_pages.add(app, replica, now_ms, shell.principal)
    app.add_api_route("/api/auth", _oauth, methods=["GET"], include_in_schema=False)
    app.add_api_route("/status", shell.osrdyne_status, methods=["GET"], include_in_schema=False)
    app.add_api_route("/health", _osrdyne_health, methods=["GET"], include_in_schema=False)
    app.add_api_route("/version", shell.osrdyne_version, methods=["GET"], include_in_schema=False)
    app.add_api_route("/api", page(app), methods=["GET"], include_in_schema=False)
    app.add_api_route("/api/index.html", page(app), methods=["GET"], include_in_schema=False)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _not_routed)
    app.add_exception_handler(Exception, _failed)
    if audit is not None:
        app.add_middleware(AuditMiddleware, audit=audit)
    app.add_middleware(HeadersMiddleware, stale_s=lambda: replica.stale_s(now_ms()))
    return app


@dataclass
class _Shell:
    """What the endpoints share."""

    _replica: Replica
    _node: NodeOperations
    _now_ms: Callable[[], int]
    _begin: Callable[[], SignIn]
    """On the loop that serves."""
    _hashing: Hashing
    folded: asyncio.Event = field(default_factory=asyncio.Event)

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        yield
        if "_signing_in" in self.__dict__:
            self._signing_in.close()

    @cached_property
    def _signing_in(self) -> SignIn:
        return self._begin()

    async def login(self, request: Request) -> Response:
        body = bodies.Login.of(await fields_of(request, LOGIN_BYTES_MAX))
        password = body.password.encode("utf-8", "replace")
        principal, cookie = await self._signing_in.begin(request, body.username, password)
        return json_response({"name": principal.name, "tags": list(principal.tags)}, headers={"set-cookie": cookie})

    async def logout(self, request: Request) -> Response:
        return Response(status_code=204, headers={"set-cookie": self._signing_in.end(request)})

    async def principal(self, request: Request) -> Principal:
        """Who asks. Refused when nobody signs in."""
        principal = local.principal_of(request, self._replica.map) or await self._signing_in.principal(request)
        request.scope[PRINCIPAL] = principal.audit_name
        return principal

    async def _reading(self, request: Request) -> Reading:
        principal = await self.principal(request)
        return Reading(self._replica, principal, self._now_ms(), request.query_params)

    async def osrdyne_status(self, request: Request) -> Response:
        query = request.scope["query_string"].decode("ascii", "replace")
        return json_response(osrdyne.status(await self._reading(request), query))

    async def osrdyne_version(self, request: Request) -> Response:
        await self.principal(request)
        return json_response({"git_describe": VERSION})

    def read(self, read: reads.Read) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            reading = await self._reading(request)
            status, document = reads.run(read, reading, decoded(request.path_params))
            headers = {}
            if read.filename:
                headers["content-disposition"] = f'attachment; filename="{read.filename}"'
            return json_response(document, status, headers)

        return endpoint

    def write(self, write: writes.Write) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            reading, fields = await self._reading_with_body(request, write.body_bytes_max, write.right)
            planned = writes.run(write, reading, decoded(request.path_params), fields)
            if planned.answer is not None:
                return json_response(planned.answer)
            request.scope[COMMANDS] = (*planned.commands, *(one.declare for one in planned.pools))
            self._not_cut_off()
            await self._hashing.complete(planned, request.is_disconnected)
            await self._carry_out(planned)
            return Response(status_code=planned.status)

        return endpoint

    def act(self, act: amqp_operations.Act) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            reading, fields = await self._reading_with_body(request, act.body_bytes_max, may_be_long=act.may_be_long)
            path = decoded(request.path_params)
            operation = amqp_operations.run(act, reading, path, fields)
            self._not_cut_off()
            if isinstance(operation, amqp_operations.CloseConnections):
                reason = request.headers.get("x-reason", "closed by operator")
                for connection_id in operation.connection_ids:
                    error = await self._node.close_connection(connection_id, reason)
                    if error is not None and (error.kind == Unavailable.kind or not operation.each):
                        raise of_order(*error)
                return Response(status_code=204)
            if isinstance(operation, amqp_operations.EndLinks):
                for arguments in operation.ends:
                    _done(await self._node.carry_out("link.end", {**arguments, "by": reading.principal.audit_name}))
                return Response(status_code=204)
            if isinstance(operation, amqp_operations.Nothing):
                return Response(status_code=204)
            user = reading.principal.amqp_user(path["vhost"])
            requests = amqp_operations.requests_of(operation)
            asked = AsUser(user, path["vhost"], reading.principal.token, requests)
            answer = amqp_operations.answer_of(operation, _done(await self._node.as_user(asked)))
            if isinstance(operation, Ask):
                return Response(status_code=204)
            if not isinstance(operation, amqp_operations.Call):
                return json_response(answer)
            await self._until(operation)
            headers = {"location": operation.location} if operation.location else None
            return Response(status_code=operation.status, headers=headers)

        return endpoint

    def operate(self, operation: operations.Operation) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            reading, fields = await self._reading_with_body(request)
            asked = operations.run(operation, reading, decoded(request.path_params), fields)
            request.scope[FACTS] = {"asked": asked.arguments}
            self._not_cut_off()
            answer = _done(await self._node.carry_out(asked.what, asked.arguments))
            return Response(status_code=204) if operation.status == 204 else json_response(answer, operation.status)

        return endpoint

    def inspect(self, question: messages.Question) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            fields: dict[str, Any] = {}
            if question.method == "GET":
                reading = await self._reading(request)
            else:
                reading, fields = await self._reading_with_body(request)
            asked = (question.asks or messages.run)(question, reading, decoded(request.path_params), fields)
            if question.what not in LOOKS:
                request.scope[FACTS] = messages.told(asked, None)
            self._not_cut_off()
            answer = _done(await self._node.carry_out("messages", {"request": encode_request(asked)}))
            if "result" not in answer:
                raise Refused(503, "unavailable", answer["unavailable"])
            result = decode_result(answer["result"])
            if question.what not in LOOKS:
                request.scope[FACTS] = messages.told(asked, result)
            return json_response(messages.document(reading, asked, result))

        return endpoint

    def search(self, search: pool_requests.Search) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            reading = await (self._reading_to_write(request) if search.cancels else self._reading(request))
            plan = pool_requests.plan(reading, decoded(request.path_params))
            self._not_cut_off()
            made = PoolSearch(self._ask_one_of_many)
            try:
                return json_response(await made.run(plan, cancels=search.cancels))
            finally:
                if search.cancels:
                    request.scope[FACTS] = {"cancelled": made.cancelled}

        return endpoint

    def explain(self, explain: pool_reasons.Explain) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            reading = await self._reading(request)
            asked = explain.asked(reading, decoded(request.path_params))
            try:
                result = await self._ask(asked.request)
            except Refused as refused:
                if refused.reason == DELETED:
                    raise object_not_found() from None
                if not str(refused.reason).startswith(UNKNOWN_WHAT):
                    raise
                result = None
            return json_response(explain.told(reading, asked.pool, result))

        return endpoint

    async def _ask(self, asked: InspectRequest) -> Result | None:
        """Of the node; None: it cannot be done now."""
        answer = _done(await self._node.carry_out("messages", {"request": encode_request(asked)}))
        return decode_result(answer["result"]) if "result" in answer else None

    async def _ask_one_of_many(self, asked: InspectRequest) -> Result | None:
        """The same; None: it refuses as well. A queue that was deleted meanwhile has nothing."""
        try:
            return await self._ask(asked)
        except Refused as refused:
            if refused.status == 503:
                raise
            return Result("", asked.queue_id, "", 0, 0, 0) if refused.reason == DELETED else None

    async def _reading_with_body(
        self,
        request: Request,
        bytes_max: int = BODY_BYTES_MAX,
        right: str = MANAGEMENT,
        may_be_long: tuple[str, ...] = (),
    ) -> tuple[Reading, dict[str, Any]]:
        """Who asks for an operation, with what (`middleware.bodies`). A body may take minutes: who was deleted, lost a
        tag or has a token that is over by then does nothing any more."""
        reading = await self._reading_to_write(request)
        reading.principal.require(right)
        index, began_ms = self._replica.map.applied, self._now_ms()
        fields = await fields_of(request, bytes_max, may_be_long)
        if self._replica.map.applied != index or not 0 <= self._now_ms() - began_ms < QUICK_MS:
            reading = await self._reading_to_write(request)
        return reading, fields

    async def _reading_to_write(self, request: Request) -> Reading:
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Refused(403, "forbidden", "a request from another site")
        return await self._reading(request)

    def _not_cut_off(self) -> None:
        stale_s = self._replica.stale_s(self._now_ms())
        if stale_s is not None:
            raise Refused(503, "unavailable", f"the node has been cut off from the cluster for {stale_s} s")

    async def _until(self, call: amqp_operations.Call) -> None:
        """The node has done it; the replica folds it a moment later. What another did since may hide it: then not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FOLDED_S):
                while not call.folded(self._replica.map):
                    self.folded.clear()
                    await self.folded.wait()

    async def _carry_out(self, planned: writes.Planned) -> None:
        if planned.whole:
            _done(await self._node.import_all(planned.definitions(), planned.pools))
            return
        for command in planned.commands:
            _done(await self._node.order(command))


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Those of the tables, made once in a process: each finds the shell of its application beside a request."""

    def of(make: Callable[[_Shell, Any], Endpoint], entry: routes.Entry) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            return await make(request.app.state.shell, entry)(request)

        return endpoint

    begin = routes.Place("POST", "/api/login", "Begin a session: a cookie, for the web page", bodies.Login)
    end = routes.Place("POST", "/api/logout", "End the session", statuses=(204,))
    tables: tuple[tuple[Callable[[_Shell, Any], Endpoint], Sequence[routes.Entry]], ...] = (
        (_Shell.read, reads.READS),
        (_Shell.write, writes.WRITES),
        (_Shell.act, amqp_operations.ACTS),
        (_Shell.operate, operations.OPERATIONS),
        (_Shell.inspect, (*messages.QUESTIONS, *delayed.QUESTIONS)),
        (_Shell.search, pool_requests.SEARCHES),
        (_Shell.explain, (pool_reasons.REASONS, pool_history.HISTORY)),
        (lambda shell, _: shell.login, (begin,)),
        (lambda shell, _: shell.logout, (end,)),
    )
    router = APIRouter(redirect_slashes=False)
    for make, entries in tables:
        for entry in entries:
            routes.add(router, entry, of(make, entry))
    return tuple(router.routes)


async def _osrdyne_health(_request: Request) -> Response:
    return json_response(osrdyne.health())


def _done(answer: T | OrderError) -> T:
    """The answer of the node. Refused when it is an error."""
    if isinstance(answer, OrderError):
        raise of_order(*answer)
    return answer


def decoded(parameters: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of a path without their escapes."""
    try:
        return {name: unquote(str(value), errors="strict") for name, value in parameters.items()}
    except UnicodeDecodeError:
        raise bad_request("the path is not UTF-8") from None


def json_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A document as RabbitMQ sends it."""
    return Response(msgspec.json.encode(document), status, headers, media_type="application/json")


async def _oauth(_request: Request) -> Response:
    """What RabbitMQ's page asks before it signs in."""
    return json_response({"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})


def error_response(status: int, error: str, reason: Any, headers: Mapping[str, str] | None = None) -> Response:
    """An error as RabbitMQ sends it."""
    return Response(
        json.dumps({"error": error, "reason": reason}, default=str), status, headers, media_type="application/json"
    )


async def _refused(request: Request, refused: Exception) -> Response:
    assert isinstance(refused, Refused), "registered for this kind"
    request.scope.setdefault(REFUSED, refused.reason)
    asks = isinstance(refused, LoginFailed) and "x-csrf" not in request.headers
    headers = {"www-authenticate": REALM} if asks else None
    return error_response(refused.status, refused.error, refused.reason, headers)


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for this kind"
    if error.status_code == 404:
        return error_response(404, "Object Not Found", "Not Found")
    if error.status_code == 405:
        allowed = {
            method
            for route in request.app.routes
            if route.matches(request.scope)[0] is not Match.NONE
            for method in route.methods or ()
        }
        if "GET" in allowed:
            allowed |= {"HEAD"}
        return error_response(405, "method_not_allowed", "Method Not Allowed", {"allow": ", ".join(sorted(allowed))})
    return error_response(error.status_code, "bad_request", str(error.detail))


async def _failed(request: Request, error: Exception) -> Response:
    bucket: Bucket = request.app.state.failures
    if bucket.passes(time.monotonic()):  # a client may find what fails, and do it again
        # as text: a renderer of exceptions may show local variables, and these are what the client sent
        trace = "".join(traceback.format_exception(error))
        LOG.error("request failed", path=request.url.path, method=request.method, trace=trace)
    return error_response(500, "internal_error", "the request failed; the node's log says more")
