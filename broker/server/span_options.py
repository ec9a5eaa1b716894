"""Target and number of spans: the section [otel] of the settings."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from clusterbroker.broker.extras import is_there, wanting

TRACES_PATH: Final = "/v1/traces"


class SpanOptions(BaseModel):
    """Spans of sampled messages, sent by OpenTelemetry's protocol. Needs the extra `otel`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    endpoint: str = ""
    """Where spans are sent (OTLP over HTTP): http://HOST:4318. Empty: none is made."""
    sampled: float = Field(default=0.0, ge=0, le=1)
    """Of messages whose publisher began no trace (header `traceparent`), the share for which one begins here; they get
    that header. Those of a trace that its publisher samples are always seen."""
    messages_per_s_max: int = Field(default=200, ge=1, le=100_000)
    """So many publishes and deliveries of a second get spans at most, whatever publishers sample."""
    service_name: str = "clusterbroker"
    """What the spans' service is called."""

    @model_validator(mode="after")
    def _can_be_sent(self) -> SpanOptions:
        if self.endpoint:
            found = urlsplit(self.endpoint)
            if found.scheme not in ("http", "https") or not found.hostname:
                raise ValueError(f"endpoint: '{self.endpoint}' is no address: write http://HOST:4318")
            if not is_there("opentelemetry.exporter.otlp.proto.http"):
                raise ValueError(wanting("endpoint", "OpenTelemetry", "otel"))
        return self

    @property
    def url(self) -> str:
        """With the path of traces, unless it has one of its own."""
        return self.endpoint.rstrip("/") + ("" if urlsplit(self.endpoint).path.strip("/") else TRACES_PATH)
