"""`/metrics`, `/metrics/per-object` and `/metrics/detailed`: what Prometheus scrapes.

As at RabbitMQ they ask for no credentials, but only from this machine: the names of queues and vhosts are nobody's
business elsewhere. From another address a user with the tag `monitoring` signs in. Requests that a proxy on this
machine forwards come from where the proxy says.

The text goes out in parts, one metric each, so that a scrape of 10,000 queues holds up no other request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from clusterbroker.broker.management import metrics
from clusterbroker.broker.management.principals import MONITORING, Principal
from clusterbroker.broker.management.replica import Replica

from .auth import from_here

PART_BYTES: Final = 64 << 10
"""Smaller parts go out together."""
Text = Callable[[Request], Iterator[str]]


def add(
    app: FastAPI,
    replica: Replica,
    now_ms: Callable[[], int],
    principal: Callable[[Request], Awaitable[Principal]],
) -> None:
    """Adds the pages. `principal`: who asks; it refuses those who do not sign in."""

    def page(text: Text) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if "authorization" in request.headers or not from_here(request):
                (await principal(request)).require(MONITORING)
            return StreamingResponse(_parts(text(request)), headers={"content-type": metrics.CONTENT_TYPE})

        return endpoint

    def detailed(request: Request) -> Iterator[str]:
        query = request.query_params
        return metrics.detailed(replica, set(query.getlist("family")), set(query.getlist("vhost")))

    for path, summary, text in (
        ("/metrics", "Sums of this node, for Prometheus", lambda _: metrics.aggregated(replica, now_ms())),
        ("/metrics/per-object", "The same by queue, channel and connection",
         lambda _: metrics.per_object(replica, now_ms())),
        ("/metrics/detailed", "Some families (`family`) by object, of some vhosts (`vhost`)", detailed),
    ):  # fmt: skip
        app.add_api_route(path, page(text), methods=["GET"], summary=summary, response_class=Response, tags=["metrics"])


async def _parts(text: Iterator[str]) -> AsyncIterator[bytes]:
    gathered: list[str] = []
    size = 0
    for part in text:
        gathered.append(part)
        size += len(part)
        if size >= PART_BYTES:
            yield "".join(gathered).encode()
            gathered, size = [], 0
            await asyncio.sleep(0)
    yield "".join(gathered).encode()
