"""Paths of the tables become routes, with what the OpenAPI document says of them; and the reference page made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from html import escape
from typing import Any, Final, NamedTuple, Protocol

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from clusterbroker.broker.management import schemas
from clusterbroker.broker.management.forms import Form
from clusterbroker.broker.management.json_schema import Schema

Endpoint = Callable[[Request], Awaitable[Response]]
_TOLD: Final = {200: "Done, and told", 201: "Made", 204: "Done", 503: "The check has failed; or not possible now"}


class Entry(Protocol):
    """A row of a table of `broker.management`."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def form(self) -> type[Form] | None:
        """Of the body."""

    @property
    def statuses(self) -> tuple[int, ...]:
        """Of a success, the commonest first."""


class Place(NamedTuple):
    """A route that is in no table."""

    method: str
    path: str
    summary: str
    form: type[Form] | None = None
    statuses: tuple[int, ...] = (200,)


def add(router: APIRouter, entry: Entry, endpoint: Endpoint) -> None:
    """One route."""
    method, path, statuses = entry.method, entry.path, entry.statuses
    listed = getattr(entry, "listed", False)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in schemas.of_path(path).items()
    ] + [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in schemas.of_query(method, path, listed).items()
    ]
    extra: dict[str, Any] = {"parameters": parameters}
    body = schemas.of_body(method, path, entry.form)
    if body is not None:
        extra["requestBody"] = {"required": bool(body.get("required")), **_json(body)}
    elif method == "POST":
        extra["requestBody"] = _json(schemas.DOCUMENT)
    told = schemas.ANSWERS.get((method, path), schemas.DOCUMENTS if listed else schemas.DOCUMENT)
    responses: dict[int | str, dict[str, Any]] = {
        status: {"description": _TOLD[status], **(_json(told) if status in (200, 503) else {})} for status in statuses
    }
    responses["default"] = {"description": "Refused", **_json(schemas.REFUSED)}
    router.add_api_route(
        path,
        endpoint,
        methods=[method],
        summary=entry.summary,
        openapi_extra=extra,
        response_class=Response,
        status_code=statuses[0],
        tags=[path.split("/")[2]],
        operation_id=f"{method} {path}",
        responses=responses,
    )


def _json(schema: Schema) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


# -- the page at /api: the OpenAPI document as plain HTML, without a script and without a request elsewhere -----

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "td{padding:.15rem .8rem .15rem 0;vertical-align:top}code{font-size:.95em}"
)


def page(app: FastAPI) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of the page."""

    async def endpoint(_request: Request) -> Response:
        html = rendered(app.openapi())
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        return HTMLResponse(html, headers={"content-security-policy": policy})

    return endpoint


def rendered(schema: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    topics: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            line = (
                f"<tr><td><code>{method.upper()}</code></td><td><code>{escape(path)}</code></td>"
                f"<td>{escape(operation['summary'])}</td></tr>"
            )
            topics.setdefault(operation["tags"][0], []).append(line)
    parts = [f"<h2>{escape(topic)}</h2><table>{''.join(lines)}</table>" for topic, lines in sorted(topics.items())]
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f'<h1>{title}</h1><p>Compatible with RabbitMQ\'s; for programs: <a href="/api/openapi.json">openapi.json</a>.'
        f"</p>{''.join(parts)}</html>"
    )
