"""One request's view of the replica: who asks, when, and how much of the past; and what all documents share."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, Final

from clusterbroker.broker.stats.rows import NodeRow
from clusterbroker.cluster.wiring.entities import OperatorPolicy, Policy
from clusterbroker.cluster.wiring.view import ClusterView

from .errors import bad_request
from .history import SAMPLES_MAX, Get, Track, Window, details, grown
from .principals import Principal
from .replica import Replica

Document = dict[str, Any]

FAMILIES: Final = ("lengths", "msg_rates", "data_rates", "node_stats")
AGE_MAX_S: Final = 86_400


class Reading:
    """Made for one request."""

    __slots__ = ("_policies", "map", "now_ms", "principal", "query", "replica", "windows")

    def __init__(
        self, replica: Replica, principal: Principal, now_ms: int, query: Mapping[str, str] | None = None
    ) -> None:
        """Refused (400) when the query asks for a past that cannot be."""
        self.replica = replica
        self.map: ClusterView = replica.map
        self.principal = principal
        self.now_ms = now_ms
        self.query: Mapping[str, str] = query or {}
        self.windows = windows(self.query)
        self._policies: dict[str, tuple[dict[str, Policy], dict[str, OperatorPolicy]]] = {}

    def policies(self, vhost: str) -> tuple[dict[str, Policy], dict[str, OperatorPolicy]]:
        """Policies and operator policies of a vhost, by name."""
        found = self._policies.get(vhost)
        if found is None:
            found = self._policies[vhost] = (
                {policy.name: policy for policy in self.map.policies(vhost)},
                {policy.name: policy for policy in self.map.operator_policies(vhost)},
            )
        return found

    def counted(
        self, family: str, tracks: Sequence[Track[Any]], fields: Mapping[str, Get], gauge: bool = False
    ) -> Document:
        """`{field: sum, field_details: {...}}` for each field, over the rows of all tracks."""
        window = self.windows.get(family)
        if window is not None and window.longer:
            self.replica.watch(track for track in tracks if not isinstance(track.row, NodeRow))
        document: Document = {}
        if window is None and len(tracks) == 1:
            return _counted_one(tracks[0], fields, gauge)
        for field, get in fields.items():
            document[field] = sum(get(track.row) for track in tracks)
            document[f"{field}_details"] = details(tracks, get, window, gauge)
        return document


def _counted_one(track: Track[Any], fields: Mapping[str, Get], gauge: bool) -> Document:
    """The commonest case, thousands of times in a long list: one row, and no past."""
    document: Document = {}
    last = track.last()
    for field, get in fields.items():
        now = document[field] = get(track.row)
        rate = 0.0
        if last is not None:
            before, elapsed_s = last
            rate = (now - get(before) if gauge else grown(get(before), now)) / elapsed_s
        document[f"{field}_details"] = {"rate": rate}
    return document


def windows(query: Mapping[str, str]) -> dict[str, Window]:
    """What the query asks of the past, by family."""
    found: dict[str, Window] = {}
    for family in FAMILIES:
        age, step = query.get(f"{family}_age"), query.get(f"{family}_incr")
        if age is None or step is None:
            continue
        if not (age.isascii() and age.isdigit() and step.isascii() and step.isdigit()) or len(age + step) > 12:
            raise bad_request(f"{family}_age and {family}_incr are whole seconds")
        seconds = min(int(age), AGE_MAX_S)
        if not int(step):
            raise bad_request(f"{family}_incr is at least 1")
        if seconds // int(step) > SAMPLES_MAX:
            raise bad_request(f"{family}_age and {family}_incr make more than {SAMPLES_MAX} samples")
        found[family] = Window(seconds * 1000, int(step) * 1000)
    return found


def same(thing: object, *names: str) -> Document:
    """Fields of a document that are called as they are in what it is made of."""
    return {name: getattr(thing, name) for name in names}


def plain(value: Any) -> Any:
    """A value of an argument table as JSON has it; AMQP's own kinds of numbers and texts become plain ones."""
    match value:
        case bool() | None:
            return value
        case str():
            return str.__str__(value).encode("utf-8", "replace").decode()
        case int():
            return int(value) if -(2**63) <= value < 2**64 else str(int(value))
        case float():
            return float(value) if isfinite(value) else str(float(value))
        case bytes() | bytearray() | memoryview():
            raw = bytes(value)
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return base64.b64encode(raw).decode()
        case Decimal():
            return float(value)
        case Mapping():
            return {plain(str(name)): plain(inner) for name, inner in value.items()}
        case Sequence():
            return [plain(inner) for inner in value]
        case _:
            return str(value)


def plain_table(table: Mapping[str, Any]) -> Document:
    """An argument table as JSON has it."""
    shown: Document = plain(table) if table else {}
    return shown


def moment(at_ms: int) -> str:
    """A time as RabbitMQ writes it: `2026-11-21T19:50:39.265+00:00`."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
