"""The arguments of basic.consume: README and docs/leases.md have their meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.lease_service import SEQ_MAX
from clusterbroker.broker.access.readers import OFFSET_MAX, LeaseReader, StreamReader
from clusterbroker.broker.content.selector.filters import BadFilter, Filter, values_filter
from clusterbroker.broker.queues.lease import NAME_BYTES_MAX
from clusterbroker.broker.wire.amqp091.errors import precondition_failed
from clusterbroker.journal.values import Timestamp

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization
    from clusterbroker.broker.queues.handle import QueueHandle

STARTS: Final = ("first", "last", "next")


class ConsumeArguments:
    """Of one consumer. What is not as it must be raises AmqpError (406)."""

    __slots__ = ("_arguments", "_tag")

    def __init__(self, tag: str, arguments: Mapping[str, Any]) -> None:
        self._tag = tag
        self._arguments = arguments

    def stream(self, access: Authorization, queue: QueueHandle) -> StreamReader:
        """What a consumer of a stream reads; x-stream-offset is "first", "last", "next", an offset or a timestamp."""
        start, wanted = self._arguments.get("x-stream-offset", "next"), f"{', '.join(STARTS)}, an offset or a timestamp"
        since_ms = None
        if isinstance(start, Timestamp):
            since_ms = int(start) * 1000
        elif start not in STARTS:
            start = self._integer("x-stream-offset", OFFSET_MAX - 1, f"expected {wanted}")
        chunks, exact = (self.flag(name) for name in ("x-stream-chunks", "x-stream-exact"))
        end = OFFSET_MAX
        if self._arguments.get("x-stream-end") is not None:
            end = self._integer("x-stream-end", OFFSET_MAX - 1, "expected an offset")
        wanted_values = self._stream_filter()
        if wanted_values is not None and (chunks or exact):
            raise self._invalid("x-stream-filter", "not beside x-stream-chunks or x-stream-exact")
        return StreamReader(
            access, queue, start, end, since_ms=since_ms, exact=exact, chunks=chunks, wanted=wanted_values
        )

    def _stream_filter(self) -> Filter | None:
        """RabbitMQ's filter: the header x-stream-filter-value is one of the texts of x-stream-filter, or absent with
        x-stream-match-unfiltered. Each message is judged, and not whole chunks."""
        if "x-stream-filter" not in self._arguments:
            return None
        unfiltered = self.flag("x-stream-match-unfiltered")
        try:
            return values_filter(self._arguments["x-stream-filter"], unfiltered)
        except BadFilter as error:
            raise self._invalid("x-stream-filter", str(error)) from None

    def lease(self, access: Authorization, queue: QueueHandle) -> LeaseReader:
        """What a consumer with x-lease reads."""
        name = self._arguments["x-lease"]
        # a lone surrogate was no UTF-8 on the wire
        if (
            not isinstance(name, str)
            or not 0 < len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX
            or any("\ud800" <= letter <= "\udfff" for letter in name)
        ):
            raise self._invalid("x-lease", f"expected a text of 1 to {NAME_BYTES_MAX} bytes")
        first, end = (
            self._integer(each, SEQ_MAX, "expected an integer, a seq") for each in ("x-stream-offset", "x-stream-end")
        )
        return LeaseReader(access, queue, name, first, end, chunks=self.flag("x-stream-chunks"))

    def priority(self) -> int:
        value = self._arguments.get("x-priority", 0)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._invalid("x-priority", "expected an integer")
        return max(-(2**31), min(2**31 - 1, int(value)))

    def flag(self, name: str) -> bool:
        """An argument that is true, or not there."""
        value = self._arguments.get(name, False)
        if not isinstance(value, bool):
            raise self._invalid(name, "expected a boolean")
        return value

    def _integer(self, name: str, high: int, wanted: str) -> int:
        value = self._arguments.get(name)
        if not isinstance(value, int) or isinstance(value, (bool, Timestamp)) or not 0 <= value <= high:
            raise self._invalid(name, wanted)
        return int(value)

    def _invalid(self, name: str, why: str) -> Exception:
        return precondition_failed(f"invalid arg '{name}' for consumer '{self._tag}': {why}")
