"""The reference page at /api: the OpenAPI document as plain HTML, without a script and without a request elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

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
