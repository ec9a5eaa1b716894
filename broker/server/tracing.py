"""Start of spans with the node, if configured: nothing of them is imported otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.server.span_options import SpanOptions


def begin_spans(options: SpanOptions | None, node: Node) -> Callable[[], None]:
    """Sampled messages of the node have spans from now on, if that is wanted. The result ends it, and may block for
    a moment while the last ones are sent."""
    if options is None:
        return lambda: None
    from clusterbroker.broker.server.spans import begin  # the extra `otel`, and half a second of imports

    return begin(options, node).close
