"""The options of the data source: one table, from which they are parsed, checked and documented.

Spark hands options over as text, with names in lower case, and leaves some of its own among them. So names are not
case-sensitive, what Spark is known to add is passed over, and anything else that is not in the table is an error that
names the nearest option: a misspelt one would otherwise be ignored, and what it was meant to prevent would happen.

`python -m clusterbroker.pipeline.options` prints the table as it stands in docs/spark.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from dataclasses import field as made_of
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from clusterbroker.pipeline.option_values import (
    Endpoint,
    Where,
    duration_s,
    flag,
    is_host,
    moment_ms,
    name,
    names,
    one_of,
    parse_endpoints,
    short,
    text,
    where,
    whole,
)

AMQP_PORT: Final = 5672
AMQPS_PORT: Final = 5671
FRAME_BYTES_MIN: Final = 4096
FRAME_BYTES_MAX: Final = 1 << 20


class BadOption(ValueError):
    """An option that is unknown or has no legal value; the text says which, and what to write."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table. `parse` raises ValueError with what it expects."""

    name: str
    default: str | None
    parse: Callable[[str], Any]
    field: str
    """Of `Options`."""
    meaning: str
    secret: bool = False


OF_SINK: Final = frozenset({"Output", "Guarantees", "Bad rows"})
OF_SOURCE: Final = frozenset({"Input", "Input from a journal", "Size of a batch"})
"""Groups; the others are of both."""


def _row(
    name: str, default: str | None, parse: Callable[[str], Any], meaning: str, *, secret: bool = False, group: str = ""
) -> Any:
    """A field of `Options` and its row of the table; `group` where one begins."""
    return made_of(metadata={"row": (name, default, parse, meaning, secret), "group": group})


# fmt: off
@dataclass(frozen=True, slots=True)
class Options:
    """Parsed options, and the table that they are parsed by."""

    endpoints: tuple[Endpoint, ...] = _row("endpoints", "localhost", parse_endpoints,
        "Nodes to connect to, `host:port` separated by commas. After a loss the next one is tried.", group="Connection")
    uri: None = _row("uri", None, text,
        "`amqp://user:password@host:port/vhost`, or `amqps://...`, in place of `endpoints`, `username`, `password`, "
        "`vhost` and `tls`. Spark's plans and logs hide options by their names, and not this one unless "
        "`spark.sql.redaction.options.regex` is `(?i)url|uri`, as a `spark_session` has it: leave the password out "
        "and give `passwordFile`.", secret=True)
    username: str = _row("username", "guest", short, "The user.")
    password: str | None = _row("password", "guest", text,
        "The password. Spark shows plans and logs: a file or the environment of the executors is safer.", secret=True)
    """None: neither given nor in a file; whoever connects asks the environment."""
    password_file: str | None = _row("passwordFile", None, text,
        "A file on every executor with the password in its first line. Without it and `password` the variable "
        "`CLUSTERBROKER_PASSWORD` is used.")
    vhost: str = _row("vhost", "/", short, "The virtual host.")
    tls: bool = _row("tls", "false", flag, "Use TLS. Certificates and host names are always verified.")
    ca_file: str | None = _row("tls.caFile", None, text, "Trusted authorities (PEM), in place of the system's.")
    cert_file: str | None = _row("tls.certFile", None, text, "The client's certificate (PEM).")
    key_file: str | None = _row("tls.keyFile", None, text, "The key, if it is in another file than the certificate.")
    connect_timeout_ms: int = _row("connectTimeoutMs", "10000", whole(1, 600_000),
        "Time limit of one endpoint until the connection is open.")
    reconnects_max: int = _row("reconnectAttempts", "10", whole(0, 1000),
        "Rounds over all endpoints in a row after a lost connection, without a confirm or a row in between.")

    exchange: str = _row("exchange", "", short,
        "Exchange of rows without a column `exchange`; empty is the default exchange, with names of queues as routing "
        "keys.", group="Output")
    routing_key: str = _row("routingKey", "", short, "Routing key of rows without a column `routing_key`.")
    persistent: bool = _row("persistent", "true", flag, "Messages survive a restart of their queue's node.")
    message_id: str = _row("messageId", "auto", one_of("auto", "none"),
        "Message id of rows without a column `message_id`: `auto` is query, batch, partition and number of the row. "
        "It is a hint for people: Spark may place a row elsewhere in a repetition.")
    message_format: str = _row("messageFormat", "raw", one_of("raw", "arrow", "jsonl"),
        "The body: `raw`, the row's `value`; `arrow`, an Arrow IPC stream of rows, where `value` may be a struct; "
        "`jsonl`, values of one line of JSON each, joined by line feeds.")
    rows_per_message: int = _row("rowsPerMessage", "1", whole(1, 1_000_000),
        "With `arrow` and `jsonl`: maximum number of rows in one message. They are of one record batch (Spark's have "
        "10,000 rows) and equal in all columns but `value`.")
    ignore_unknown_columns: bool = _row("ignoreUnknownColumns", "false", flag,
        "Ignore columns that the sink does not have. Otherwise they are an error.")
    counts_file: str | None = _row("countsFile", None, text,
        "A file beside the driver. Each committed batch adds a line of JSON: rows, messages, and rows that were "
        "skipped, dead-lettered and sent again.")

    guarantee: str = _row("deliveryGuarantee", "at-least-once", one_of("at-least-once", "exactly-once"),
        "`exactly-once`: rows are staged at the broker and published with the complete batch, once."
, group="Guarantees")
    producer: str | None = _row("txnAppId", None, name(),
        "Exactly-once: identity of the writer. A stream uses the id of its query, a batch a new one each time.")
    epoch: int | None = _row("txnVersion", None, whole(0, 2**62),
        "Exactly-once: number of the writer's batch. A committed one is not written again. A stream uses the number "
        "of its micro-batch.")
    transaction_expires_ms: int = _row("txnExpiresMs", "3600000", whole(10_000, 86_400_000),
        "Exactly-once: uncommitted rows of that age are dropped. Must exceed the time of a batch.")
    producer_ttl_ms: int = _row("txnTtlMs", "2592000000", whole(3_600_000, 2**53),
        "Exactly-once: a writer is forgotten that long after its last batch.")
    staged_bytes_max: int = _row("maxStagedBytes", "1073741824", whole(1, 2**62), "Exactly-once: maximum of one task.")
    unroutable: str = _row("unroutable", "fail", one_of("fail", "ignore"),
        "Rows without a queue: fail the task, or ignore the loss.")
    in_flight_max: int = _row("maxInFlight", "10000", whole(1, 1_000_000),
        "Maximum number of unconfirmed rows (messages, with `rowsPerMessage`), per task.")
    confirm_timeout_ms: int = _row("publisherConfirmTimeoutMs", "30000", whole(1, 3_600_000),
        "A task fails after that time without a confirm. While the broker blocks publishers the time stands still.")

    on_row_error: str = _row("onRowError", "fail", one_of("fail", "skip", "deadLetter"),
        "Rows that are no message (no value, a routing key beyond 255 bytes, a priority beyond 255, ...): fail the "
        "task, skip and count the row, or send it to `deadLetterExchange`.", group="Bad rows")
    dead_letter_exchange: str | None = _row("deadLetterExchange", None, short,
        "Exchange of bad rows, with their value and key if present, and the reason in the header `x-row-error`.")
    message_bytes_max: int = _row("maxMessageBytes", "16777216", whole(1, 1 << 30),
        "A longer value is a bad row, and combined rows stay below it. Brokers close the channel of a longer message.")

    streams: tuple[str, ...] = _row("stream", None, names,
        "The streams to read, separated by commas. A checkpoint belongs to these and no others.", group="Input")
    """Of a query on a queue: that queue alone."""
    queue: str | None = _row("queue", None, name(),
        "In place of `stream`, for streaming: a queue. The query leases it, alone; committed rows leave the queue, "
        "with the next trigger.")
    consumer_name: str | None = _row("consumerName", None, name(200),
        "Of `queue`: the name of the lease. A restarted query with the same name continues, and one that still runs "
        "with it is refused from then on. Of a query on `stream`: see `storeBrokerOffsets`.")
    stores_offsets: bool = _row("storeBrokerOffsets", "true", flag,
        "Of `stream`: a query with a `consumerName` stores its offsets at the broker, to show its lag. The start is "
        "in the checkpoint alone.")
    lease_ttl_ms: int = _row("leaseTtlMs", "86400000", whole(1000, 2_592_000_000),
        "Of `queue`: uncommitted rows return to the queue that long after the query's last request. Must exceed the "
        "query's absence.")
    starting: Where | None = _row("startingOffsets", None, where,  # noqa: RUF009 - a field
        "Start of a batch, or of a stream without a checkpoint: `earliest` (the default of batches), `latest` (of "
        "streams), or JSON with an offset, `earliest` or `latest` for each stream: `{\"readings\": 1200}`.")
    ending: Where | None = _row("endingOffsets", None, where,  # noqa: RUF009 - a field
        "End of a batch, exclusive; else `latest`.")
    starting_ms: int | None = _row("startingTimestamp", None, moment_ms,
        "In place of `startingOffsets`: the first message that arrived at or after this moment, as ms since 1970 or "
        "ISO 8601 with a zone.")
    ending_ms: int | None = _row("endingTimestamp", None, moment_ms, "In place of `endingOffsets`, likewise.")
    fail_on_data_loss: bool = _row("failOnDataLoss", "true", flag,
        "A query fails when retention removed unread messages, or its stream was declared again. Otherwise it "
        "continues with the existing messages.")
    include_headers: bool = _row("includeHeaders", "false", flag, "Add a column `headers`, the most expensive one.")
    read_timeout_ms: int = _row("readTimeoutMs", "60000", whole(1, 3_600_000),
        "A task fails after that time without a message, and a query without its stream's offsets.")

    journal: str | None = _row("journal", None, text,
        "In place of `stream`, for batches: a node's data directory, or a copy of it, visible to every executor. Its "
        "disk is read, beside the node or without it.", group="Input from a journal")
    queues: tuple[str, ...] | None = _row("queues", None, names,
        "The queues to read of it, by name and separated by commas. Otherwise all of the vhost `vhost`.")

    trigger_rows_max: int | None = _row("maxRecordsPerTrigger", None, whole(1, 2**62),
        "Maximum number of messages in a micro-batch, of all streams together.", group="Size of a batch")
    trigger_bytes_max: int | None = _row("maxBytesPerTrigger", None, whole(1, 2**62),
        "Approximate maximum of bytes, as stored: estimated with the mean size of the stream's messages.")
    trigger_rows_min: int | None = _row("minOffsetsPerTrigger", None, whole(1, 2**62),
        "Minimum number of messages of a micro-batch, which waits at most `maxTriggerDelay` for them.")
    trigger_delay_max_s: float = _row("maxTriggerDelay", "15m", duration_s, "Time limit of `minOffsetsPerTrigger`.")
    parts_min: int | None = _row("minPartitions", None, whole(1, 100_000),
        "Minimum number of parallel tasks of a batch. Otherwise one for each stream.")
    part_rows_max: int | None = _row("maxRecordsPerPartition", None, whole(1, 2**62),
        "Maximum number of messages of a task.")

    heartbeat_s: int = _row("amqp.heartbeat", "0", whole(0, 65_535),
        "Seconds between heartbeats to ask for; 0: none, and TCP's keepalive notices a lost host after 40 s. A task "
        "sends them while it waits for the broker, but not while Spark computes or a worker is idle. A broker ends "
        "such a connection after two missing ones, and the next use makes a new one (exactly-once, within an attempt: "
        "the task is run again). So set more than the longest pause between two batches of rows.", group="Protocol")
    frame_bytes_max: int = _row("amqp.frameMax", "131072", whole(FRAME_BYTES_MIN, FRAME_BYTES_MAX),
        "Maximum frame size to ask for, in bytes.")

    # fmt: on
    @property
    def stages(self) -> bool:
        """Whether rows are staged, for exactly-once."""
        return self.guarantee == "exactly-once"

    def __repr__(self) -> str:
        """Without the password: tracebacks and Spark's logs show this."""
        nodes = ",".join(map(str, self.endpoints))
        return f"Options(endpoints={nodes!r}, username={self.username!r}, vhost={self.vhost!r}, ...)"


def _groups() -> dict[str, tuple[Option, ...]]:
    found: dict[str, tuple[Option, ...]] = {}
    group = ""
    for one in fields(Options):
        group = one.metadata["group"] or group
        name, default, parse, meaning, secret = one.metadata["row"]
        found[group] = (*found.get(group, ()), Option(name, default, parse, one.name, meaning, secret))
    return found


OPTIONS: Final[Mapping[str, tuple[Option, ...]]] = _groups()
"""The table by group."""
_ROWS: Final = {option.name.lower(): option for group in OPTIONS.values() for option in group}
_OF_SINK: Final = frozenset(option for group in OF_SINK for option in OPTIONS[group])
_OF_SOURCE: Final = frozenset(option for group in OF_SOURCE for option in OPTIONS[group])
_OF_SPARK: Final = frozenset({"path", "checkpointlocation", "queryname"})
"""What Spark itself leaves among a sink's options."""


def parse(given: Mapping[str, str], reads: bool = False) -> Options:
    """Of the sink, or of a source. Raises BadOption."""
    values: dict[str, Any] = {}
    named: set[str] = set()
    for key, value in given.items():
        option = _ROWS.get(key.lower())
        if option is None:
            if key.lower() in _OF_SPARK:
                continue
            raise BadOption(f"unknown option '{key}'{_nearest(key)}")
        if option in (_OF_SINK if reads else _OF_SOURCE):
            raise BadOption(f"option '{option.name}' is one of {'the sink' if reads else 'sources'} only: leave it out")
        values[option.field] = _parsed(option, value)
        named.add(option.field)
    for option in _ROWS.values():
        if option.field not in values:
            values[option.field] = None if option.default is None else _parsed(option, option.default)
    if "password" not in named:
        values["password"] = None
    if values["uri"] is not None:
        values |= _of_uri(given, named)
    port = AMQPS_PORT if values["tls"] else AMQP_PORT
    values["endpoints"] = tuple(Endpoint(host, given_port or port) for host, given_port in values["endpoints"])
    _check_together(values, named)
    if reads:
        _check_reading(values, named)
        values["confirm_timeout_ms"] = values["read_timeout_ms"]  # of questions, which are confirmed too
    return Options(**values)


def _parsed(option: Option, value: str) -> Any:
    try:
        return option.parse(value)
    except ValueError as error:
        said = "***" if option.secret else value
        raise BadOption(f"option '{option.name}' is '{said}': expected {error}") from None


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key.lower(), _ROWS, 1)
    return f": did you mean '{_ROWS[near[0]].name}'?" if near else "; docs/spark.md lists all of them"


def _of_uri(given: Mapping[str, str], named: set[str]) -> dict[str, Any]:
    [uri] = [value for key, value in given.items() if key.lower() == "uri"]
    if doubled := sorted(named & {"endpoints", "username", "password", "vhost", "tls"}):
        raise BadOption(f"option 'uri' says what option '{doubled[0]}' says too: give one of them")
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.query and parts.hostname:
        raise BadOption("option 'uri' has a query (?...): leave it out, what it says has options of its own")
    is_whole = parts.scheme in ("amqp", "amqps") and parts.hostname and "/" not in parts.path[1:] and not parts.fragment
    vhost = unquote(parts.path[1:]) or "/"
    if not is_whole or not is_host(parts.hostname or "") or len(vhost.encode()) > 255:
        raise BadOption(
            "option 'uri' is '***': expected amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps://..., with %2F for '/', "
            "%3F for '?', %23 for '#' and %40 for '@' in a name or password"
        )
    assert parts.hostname is not None, "it was looked at"
    return {
        "uri": None,
        "endpoints": (Endpoint(parts.hostname, port or 0),),
        "username": unquote(parts.username) if parts.username is not None else "guest",
        "password": None if parts.password is None else unquote(parts.password),
        "vhost": vhost,
        "tls": parts.scheme == "amqps",
    }


def _check_together(values: Mapping[str, Any], named: set[str]) -> None:
    if values["password"] is not None and values["password_file"] is not None:
        raise BadOption("options 'password' and 'passwordFile' exclude each other: give one of them")
    if values["on_row_error"] == "deadLetter" and values["dead_letter_exchange"] is None:
        raise BadOption("option 'onRowError' is 'deadLetter', so option 'deadLetterExchange' must name an exchange")
    if values["on_row_error"] != "deadLetter" and values["dead_letter_exchange"] is not None:
        raise BadOption("option 'deadLetterExchange' is used with 'onRowError' = 'deadLetter' only")
    if values["message_format"] == "raw" and values["rows_per_message"] > 1:
        raise BadOption(
            f"option 'rowsPerMessage' is '{values['rows_per_message']}', and a raw message holds one row: set "
            "messageFormat to arrow or jsonl"
        )
    of_staging = sorted(named & {
        "producer", "epoch", "transaction_expires_ms", "producer_ttl_ms", "staged_bytes_max"
    })  # fmt: skip
    if values["guarantee"] != "exactly-once" and of_staging:
        raise BadOption(f"option '{_name_of(of_staging[0])}' is used with 'deliveryGuarantee' = 'exactly-once' only")
    if values["guarantee"] == "exactly-once" and not values["persistent"]:
        raise BadOption("option 'persistent' is 'false': exactly-once needs messages that survive")
    if values["epoch"] is not None and values["producer"] is None:
        raise BadOption("option 'txnVersion' needs option 'txnAppId'")
    if values["key_file"] is not None and values["cert_file"] is None:
        raise BadOption("option 'tls.keyFile' needs option 'tls.certFile'")
    if not values["tls"] and (loose := sorted(named & {"ca_file", "cert_file", "key_file"})):
        raise BadOption(f"option '{_name_of(loose[0])}' needs 'tls' = 'true', or a uri amqps://")


_NOT_OF_JOURNALS: Final = frozenset({
    "streams", "starting", "starting_ms", "ending", "ending_ms", "trigger_rows_max", "trigger_bytes_max",
    "trigger_rows_min", "trigger_delay_max_s", "fail_on_data_loss", "queue", "consumer_name", "stores_offsets",
})  # fmt: skip


def _check_reading(values: dict[str, Any], named: set[str]) -> None:
    if values["journal"] is not None:
        if others := named & _NOT_OF_JOURNALS:
            raise BadOption(f"option '{_name_of(min(others))}' is not for a journal: leave it out")
        return
    if values["queues"] is not None:
        raise BadOption("option 'queues' is used with 'journal' only")
    _check_queue(values, named)
    if values["streams"] is None:
        raise BadOption("option 'stream' is missing: name the stream queue to read")
    for one, other in (("starting", "starting_ms"), ("ending", "ending_ms")):
        if one in named and other in named:
            raise BadOption(f"options '{_name_of(one)}' and '{_name_of(other)}' exclude each other: give one of them")
    for field in ("starting", "ending"):
        said = values[field]
        if isinstance(said, tuple) and {stream for stream, _ in said} != set(values["streams"]):
            raise BadOption(f"option '{_name_of(field)}' must name the streams of option 'stream', each once")
    if "trigger_delay_max_s" in named and values["trigger_rows_min"] is None:
        raise BadOption("option 'maxTriggerDelay' needs option 'minOffsetsPerTrigger'")


_OF_STREAMS: Final = ("streams", "starting", "starting_ms", "ending", "ending_ms", "stores_offsets")
_OF_QUEUES: Final = ("lease_ttl_ms",)


def _check_queue(values: dict[str, Any], named: set[str]) -> None:
    """A queue stands in the place of streams."""
    if values["queue"] is None:
        if others := named & {*_OF_QUEUES}:
            raise BadOption(f"option '{_name_of(min(others))}' is used with 'queue' only")
        if "stores_offsets" in named and values["stores_offsets"] and not values["consumer_name"]:
            raise BadOption("option 'storeBrokerOffsets' needs option 'consumerName'")
        return
    if others := named & {*_OF_STREAMS}:
        raise BadOption(f"option '{_name_of(min(others))}' is not for a queue: leave it out")
    if not values["consumer_name"]:
        raise BadOption("option 'consumerName' is missing: a query on a queue needs a name that it keeps")
    values["streams"] = (values["queue"],)


def _name_of(field: str) -> str:
    return next(option.name for option in _ROWS.values() if option.field == field)


def table() -> str:
    """The options as Markdown."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for group, options in OPTIONS.items():
        lines.append(f"| **{group}** | | |")
        for option in options:
            default = "" if option.default is None else f"`{option.default}`" if option.default else "empty"
            lines.append(f"| `{option.name}` | {default} | {option.meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
