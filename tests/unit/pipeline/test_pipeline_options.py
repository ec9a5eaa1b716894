"""Options of the data source: parsed, refused with what to write, and told as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterbroker.pipeline import columns
from clusterbroker.pipeline.columns import BadColumns
from clusterbroker.pipeline.option_values import Endpoint
from clusterbroker.pipeline.options import BadOption, parse, table

ROOT = Path(__file__).resolve().parents[3]


def test_defaults() -> None:
    options = parse({})
    assert options.endpoints == (Endpoint("localhost", 5672),)
    assert (options.username, options.password, options.vhost, options.tls) == ("guest", None, "/", False)
    assert (options.in_flight_max, options.unroutable, options.persistent) == (10_000, "fail", True)


def test_names_are_not_case_sensitive_and_sparks_own_are_passed_over() -> None:
    options = parse({"maxinflight": "7", "ROUTINGKEY": "k", "checkpointlocation": "/tmp/x", "path": "y"})
    assert (options.in_flight_max, options.routing_key) == (7, "k")


def test_endpoints_and_their_ports() -> None:
    several = parse({"endpoints": "one, two:5673 ,[::1]:7,"}).endpoints
    assert several == (Endpoint("one", 5672), Endpoint("two", 5673), Endpoint("::1", 7))
    assert str(several[2]) == "[::1]:7"
    assert parse({"endpoints": "one,two:9", "tls": "true"}).endpoints == (Endpoint("one", 5671), Endpoint("two", 9))


def test_a_uri_says_it_all() -> None:
    options = parse({"uri": "amqps://me:p%40ss@host/v%2Fx"})
    assert options.endpoints == (Endpoint("host", 5671),)
    assert (options.username, options.password, options.vhost, options.tls) == ("me", "p@ss", "v/x", True)
    plain = parse({"uri": "amqp://host:99"})
    assert (plain.endpoints, plain.username, plain.password) == ((Endpoint("host", 99),), "guest", None)
    assert plain.vhost == "/"


@pytest.mark.parametrize(
    "given, said",
    [
        ({"routingkye": "k"}, "unknown option 'routingkye': did you mean 'routingKey'?"),
        ({"whatever": "k"}, "unknown option 'whatever'; docs/spark.md lists all of them"),
        ({"maxInFlight": "0"}, "option 'maxInFlight' is '0': expected a whole number from 1 to 1000000"),
        ({"maxInFlight": "many"}, "option 'maxInFlight' is 'many': expected a whole number from 1 to 1000000"),
        ({"tls": "yes"}, "option 'tls' is 'yes': expected true or false"),
        ({"endpoints": " , "}, "option 'endpoints' is ' , ': expected HOST:PORT, or several separated by commas"),
        ({"endpoints": "a:x"}, "option 'endpoints' is 'a:x': expected HOST:PORT"),
        ({"endpoints": "a:"}, "option 'endpoints' is 'a:': expected HOST:PORT"),
        ({"endpoints": "a/b"}, "option 'endpoints' is 'a/b': expected HOST:PORT"),
        ({"endpoints": "u@a"}, "option 'endpoints' is 'u@a': expected HOST:PORT"),
        ({"endpoints": "a:70000"}, "option 'endpoints' is 'a:70000': expected HOST:PORT"),
        ({"unroutable": "drop"}, "option 'unroutable' is 'drop': expected fail or ignore"),
        ({"exchange": "e" * 256}, "expected at most 255 bytes of UTF-8"),
        ({"uri": "http://u:secret@h"}, "option 'uri' is '***': expected amqp://"),
        ({"uri": "amqp://h:x/"}, "option 'uri' is '***': expected amqp://"),
        ({"uri": "amqp://h/a/b"}, "option 'uri' is '***': expected amqp://"),
        ({"uri": "amqp://h", "vhost": "v"}, "option 'uri' says what option 'vhost' says too"),
        ({"uri": "amqp://h/?heartbeat=30"}, "option 'uri' has a query (?...): leave it out"),
        ({"uri": "amqp://u:pass#word@h/"}, "%23 for '#'"),
        ({"uri": "amqp://h#x"}, "option 'uri' is '***': expected amqp://"),
        ({"uri": "amqp://a..b"}, "option 'uri' is '***': expected amqp://"),
        ({"uri": "amqp://h/" + "v" * 256}, "option 'uri' is '***': expected amqp://"),
        ({"endpoints": "a..b:5672"}, "option 'endpoints' is 'a..b:5672': expected HOST:PORT"),
        ({"endpoints": "a?b"}, "option 'endpoints' is 'a?b': expected HOST:PORT"),
        ({"endpoints": "h" * 64}, "expected HOST:PORT"),
        ({"deliveryGuarantee": "exactly-once", "txnAppId": ""}, "option 'txnAppId' is '': expected 1 to 255 bytes"),
        ({"password": "a", "passwordFile": "b"}, "options 'password' and 'passwordFile' exclude each other"),
        ({"onRowError": "deadletter"}, "option 'deadLetterExchange' must name an exchange"),
        ({"deadLetterExchange": "x"}, "is used with 'onRowError' = 'deadLetter' only"),
        ({"tls": "true", "tls.keyFile": "k"}, "option 'tls.keyFile' needs option 'tls.certFile'"),
        ({"tls.caFile": "k"}, "option 'tls.caFile' needs 'tls' = 'true'"),
    ],
)
def test_what_is_wrong_is_told(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption) as error:
        parse(given)
    assert said in str(error.value)


def test_no_secret_is_shown() -> None:
    options = parse({"uri": "amqp://me:hushhush@host"})
    assert "hushhush" not in repr(options)
    assert "host:5672" in repr(options)


def test_what_a_source_reads() -> None:
    options = parse({"stream": "a, b", "startingOffsets": '{"a": 5, "b": "latest"}', "maxTriggerDelay": "90s",
                     "minOffsetsPerTrigger": "9", "endingTimestamp": "2026-01-31T08:00:00Z"}, reads=True)  # fmt: skip
    assert (options.streams, options.starting) == (("a", "b"), (("a", 5), ("b", "latest")))
    assert (options.trigger_delay_max_s, options.ending_ms) == (90, 1_769_846_400_000)
    assert parse({"stream": "a", "startingTimestamp": "5"}, reads=True).starting_ms == 5
    assert parse({"stream": "a", "startingTimestamp": "1960-01-01T00:00:00Z"}, reads=True).starting_ms == 0
    options = parse({"queue": "q, r", "consumerName": "n"}, reads=True)
    assert (options.queue, options.streams, options.lease_ttl_ms) == ("q, r", ("q, r",), 86_400_000)


@pytest.mark.parametrize(
    "given, said",
    [
        ({}, "option 'stream' is missing: name the stream queue to read"),
        ({"queue": "q"}, "option 'consumerName' is missing: a query on a queue needs a name that it keeps"),
        ({"queue": "q", "stream": "a", "consumerName": "n"}, "option 'stream' is not for a queue: leave it out"),
        ({"queue": "q", "startingOffsets": "latest"}, "option 'startingOffsets' is not for a queue: leave it out"),
        ({"stream": "a", "leaseTtlMs": "5000"}, "option 'leaseTtlMs' is used with 'queue' only"),
        ({"stream": "a", "storeBrokerOffsets": "true"}, "option 'storeBrokerOffsets' needs option 'consumerName'"),
        ({"queue": "q", "consumerName": "n", "storeBrokerOffsets": "true"}, "is not for a queue: leave it out"),
        ({"journal": "d", "consumerName": "n"}, "option 'consumerName' is not for a journal: leave it out"),
        ({"journal": "d", "queue": "q"}, "option 'queue' is not for a journal: leave it out"),
        ({"stream": " ,"}, "option 'stream' is ' ,': expected names separated by commas"),
        ({"stream": "a,a"}, "expected names separated by commas, each once"),
        ({"stream": "a", "exchange": "e"}, "option 'exchange' is one of the sink only: leave it out"),
        ({"stream": "a", "startingOffsets": "first"}, "option 'startingOffsets' is 'first': expected earliest, latest"),
        ({"stream": "a", "startingOffsets": "[1]"}, "expected earliest, latest, or an offset for each stream as JSON"),
        ({"stream": "a", "startingOffsets": '{"a": -1}'}, "expected earliest, latest, or an offset for each"),
        ({"stream": "a", "startingOffsets": '{"b": 1}'}, "option 'startingOffsets' must name the streams of option"),
        ({"stream": "a", "startingOffsets": "latest", "startingTimestamp": "1"}, "exclude each other"),
        ({"stream": "a", "startingTimestamp": "yesterday"}, "expected ms since 1970, or a moment with its zone"),
        ({"stream": "a", "startingTimestamp": "2026-01-31T08:00:00"}, "or a moment with its zone"),
        ({"stream": "a", "startingTimestamp": "1769846400000000"}, "expected ms since 1970, or a moment"),
        ({"stream": "a", "startingOffsets": "[" * 100_000}, "expected earliest, latest, or an offset for each"),
        ({"queue": "", "consumerName": "n"}, "option 'queue' is '': expected 1 to 255 bytes of UTF-8"),
        ({"queue": "q", "consumerName": "n" * 201}, "expected 1 to 200 bytes of UTF-8"),
        ({"stream": "a", "maxTriggerDelay": "5 minutes"}, "expected a whole number and ms, s, m, h or d, such as 15m"),
        ({"stream": "a", "maxTriggerDelay": "5m"}, "option 'maxTriggerDelay' needs option 'minOffsetsPerTrigger'"),
    ],
)  # fmt: skip
def test_what_a_source_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption) as error:
        parse(given, reads=True)
    assert said in str(error.value)


def test_the_sink_is_told_which_options_are_of_sources() -> None:
    with pytest.raises(BadOption, match="option 'stream' is one of sources only"):
        parse({"stream": "a"})


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    assert table() in page, (
        "docs/spark.md is not current: put there what `python -m clusterbroker.pipeline.options` prints"
    )


def test_the_page_names_every_column() -> None:
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    page = page.partition("\n## Columns of the sink\n")[2].partition("\n## ")[0]
    for name, kinds in columns.COLUMNS.items():
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        for kind in kinds:
            assert kind in row or (kind in ("tinyint", "smallint", "bigint") and "whole number" in row)


def test_columns_are_checked() -> None:
    assert columns.check([("value", "binary"), ("headers", "map<string,string>")], False) == ("value", "headers")
    assert columns.check([("other", "int"), ("value", "string collate UNICODE")], True) == ("value",)


@pytest.mark.parametrize(
    "given, said",
    [
        ([("values", "string")], "unknown column 'values'. did you mean 'value'?"),
        ([("value", "string"), ("zzzzz", "string")], "unknown column 'zzzzz'. It is none of the sink's"),
        ([("value", "int")], "column 'value' has type int: cast it to binary or string"),
        ([("value", "string"), ("priority", "string")], "column 'priority' has type string"),
        ([("value", "string"), ("value", "string")], "column 'value' is there twice"),
        ([("routing_key", "string")], "column 'value' is missing"),
    ],
)
def test_wrong_columns_are_told(given: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(BadColumns) as error:
        columns.check(given, False)
    assert said in str(error.value)
