"""Requests that no library would send, at a real node: `python -m tests.fuzz.raw_requests --seconds 60 --seed 1`.

Paths with escapes and dots, heads that lie about lengths, bodies that are deep, huge, cut off or no JSON, by somebody
who is signed in and by somebody who is not. Each answer is HTTP and no 5xx (a health check may say 503), a refusal says
`error` and `reason` or is the HTTP library's own word, and no answer repeats a line break of the request in its head.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from clusterbroker.broker.management import delayed, messages
from clusterbroker.broker.management.amqp_operations import ACTS
from clusterbroker.broker.management.operations import OPERATIONS
from clusterbroker.broker.management.reads import READS
from clusterbroker.broker.management.writes import WRITES
from tests.fuzz.management_requests import USER, still_works, target

ANSWER_S = 5.0
"""Less than the patience of the server with a body that does not come: those requests end with their connection."""
PATHS = sorted(
    {("GET", read.path) for read in READS}
    | {(one.method, one.path) for one in (*WRITES, *ACTS, *OPERATIONS, *messages.QUESTIONS, *delayed.QUESTIONS)}
    | {("GET", "/metrics/detailed"), ("GET", "/metrics"), ("GET", "/api/openapi.json"), ("GET", "/"), ("GET", "/api")}
)
PARTS = (
    b"%2F", b"q", b"fuzz%2Fed", b"topic", b"p", b"alice", b"..", b".", b"%2e%2e", b"%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    b"%00", b"%0d%0a", b"a%0d%0aset-cookie:%20x=1", b"%", b"%z", b"%FF%FE", b"%ED%A0%80", "\u00fc".encode(),
    b"%C3%BC", b"//", b"a;b", b"a?b", b"a#b", b"*", b"%25%32%46", b"x" * 255, b"x" * 256, b"%61" * 300, b"-1", b"1e9",
    b"true", b"~", b"amq.default",
)  # fmt: skip
WORDS = """
    page page_size name use_regex sort sort_reverse columns cursor limit lengths_age lengths_incr msg_rates_age
    msg_rates_incr from to count filter truncate encoding dry_run grouped if-unused if-empty family vhost
""".split()  # noqa: SIM905 (a list of words)
VALUES = (
    b"", b"0", b"1", b"-1", b"500", b"501", b"9" * 30, b"1e5", b"true", b"name", b"a.b.c", b"(", b"(a*)*b", b"%00",
    b"%FF", b"[", b"W10", b"size%3E1", b"payload~x", b"base64", b"\xff", b"x" * 5000, b"name,," * 90,
)  # fmt: skip
FIELDS = """
    name value password password_hash tags configure write read exchange pattern definition apply-to priority
    arguments durable auto_delete type routing_key payload payload_encoding properties count ackmode encoding
    truncate seqs filter to_queue to_origin from to users vhosts permissions queues exchanges bindings policies
    parameters global_parameters action undo confirm_loss limits hashing_algorithm username component destination
    source vhost life tracing metadata default_queue_type description
""".split()  # noqa: SIM905 (a list of words)
LEAVES = (
    "null", "true", "0", "-1", "1e400", "1" * 400, "0.1", '""', '"q"', '"/"', '"topic"', '"\\ud800"', '"\\u0000"',
    '".*"', '"("', "[]", "{}", "[1]", "[null]", '{"x-max-length": -1}', '{"headers": {"a": [[[]]]}}', '"get"',
    '"ack_requeue_true"', '"auto"', '"string"', '"base64"', '"' + "x" * 3000 + '"', "9223372036854775808",
    '[{"name": "q"}]', '"administrator"',
)  # fmt: skip
ODD_BODIES = (
    b"[" * 100_000, b'{"a":' * 50_000, b'{"arguments":' + b'{"a":' * 200 + b"1" + b"}" * 201, b"\xff\xfe", b"nul",
    b'{"a":1}{"a":2}', b"\x00", b'{"name": "' + b"x" * 200_000 + b'"}', b'"text"', b"[]", b"1", b" ",
    b'{"a": 1e999999}', b'{"\\ud800": 1}', b'{"a": NaN}',
    b"{" + b",".join(b'"k%d":1' % number for number in range(5000)) + b"}",
)  # fmt: skip
ODD_LINES = (
    b"sec-fetch-site: cross-site", b"x-csrf: 1", b"x-clusterbroker-as: guest", b"x-forwarded-for: 192.0.2.7",
    b"origin: http://evil.example", b"cookie: clusterbroker-1=x; a", b"expect: 100-continue", b" folded",
    b"a" * 40_000, b"upgrade: websocket", b"range: bytes=0-1", b"x-reason: " + b"r" * 4000,
)  # fmt: skip
AUTHORISED = b"Basic " + base64.b64encode(":".join(USER).encode())
STRANGERS = (
    b"Basic",
    b"Basic !!!",
    b"Bearer x.y.z",
    b"Bearer " + b"x" * 9000,
    b"Basic " + base64.b64encode(b"\xff:\xff"),
    b"Digest a",
)
"""None of them is a guess at a password: ten of these would hold up whoever comes from here."""


def made(chance: random.Random) -> bytes:
    """One request."""
    method, path = chance.choice(PATHS)
    target_ = b"/".join(
        chance.choice(PARTS) if part.startswith("{") or chance.random() < 0.02 else part.encode()
        for part in path.split("/")
    )
    if chance.random() < 0.4:
        pairs = [chance.choice(WORDS).encode() + b"=" + chance.choice(VALUES) for _ in range(chance.randint(1, 4))]
        target_ += b"?" + b"&".join(pairs)
    if chance.random() < 0.05:
        method = chance.choice(
            ("HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "PUT", "DELETE", "POST", "X-" * 20)
        )
    return head(chance, method, target_, body(chance) if method != "GET" or chance.random() < 0.05 else b"")


def body(chance: random.Random) -> bytes:
    """Fields that the API knows with values of any kind; or nothing of that sort."""
    if chance.random() < 0.15:
        return chance.choice(ODD_BODIES)
    fields = (f'"{chance.choice(FIELDS)}": {chance.choice(LEAVES)}' for _ in range(chance.randint(0, 6)))
    octets = ("{" + ", ".join(fields) + "}").encode("utf-8", "surrogatepass")
    return octets[: chance.randrange(len(octets))] if chance.random() < 0.05 else octets


def head(chance: random.Random, method: str, path: bytes, content: bytes) -> bytes:
    """The request with this body, and sometimes with a head that does not fit it."""
    lines = [method.encode() + b" " + path + b" HTTP/1.1", b"connection: close"]
    if chance.random() < 0.98:
        lines.append(b"host: " + chance.choice((b"localhost", b"127.0.0.1:1", b"evil.example", b"[::1]", b"x" * 300)))
    if chance.random() < 0.9:
        lines.append(b"authorization: " + AUTHORISED)
    else:
        lines.append(b"authorization: " + chance.choice(STRANGERS))
    if content or chance.random() < 0.5:
        kinds = (b"application/json",) * 8 + (
            b"text/plain",
            b"application/json; charset=utf-16",
            b"\xff",
            b"multipart/form-data",
        )
        lines.append(b"content-type: " + chance.choice(kinds))
    odd = chance.random()
    if odd < 0.03:
        lines.append(b"content-length: " + chance.choice((b"-1", b"x", b"9" * 40, b"99999999", b"0", b"5, 5", b"+5")))
    elif odd < 0.06:
        lines += [b"transfer-encoding: chunked", b"content-length: %d" % len(content)]
    elif odd < 0.10:
        lines.append(b"transfer-encoding: chunked")
        content = b"%x\r\n" % len(content) + content + b"\r\n0\r\n\r\n" if content else b"0\r\n\r\n"
    else:
        lines.append(b"content-length: %d" % len(content))
    for line in ODD_LINES:
        if chance.random() < 0.01:
            lines.append(line)
    return b"\r\n".join(lines) + b"\r\n\r\n" + content


def fault(request: bytes, answer: bytes) -> str | None:
    """What is wrong with an answer."""
    if not answer:
        return None  # cut off: what came was no request, or its body never came
    top, _, rest = answer.partition(b"\r\n\r\n")
    first = top.split(b"\r\n")[0].split(b" ")
    if len(first) < 2 or not first[0].startswith(b"HTTP/1.") or not first[1].isdigit():
        return "no HTTP"
    status, plain = int(first[1]), b"/health" not in request.split(b"\r\n")[0]
    if b"\r\nset-cookie: x" in top.lower():
        return "a head that the request wrote"
    if status >= 500 and (plain or status != 503):
        return "a 5xx"
    if status >= 400 and plain and b"application/json" in top and not request.startswith(b"HEAD"):
        try:
            refusal = json.loads(rest)
            told = {"error", "reason"} <= refusal.keys()
        except ValueError:
            told = False
        if not told:
            return "a refusal without error and reason"
    return None


async def asked(url: str, request: bytes) -> bytes:
    """The answer; empty when the connection was cut, or is still open and silent."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        async with asyncio.timeout(ANSWER_S):
            writer.write(request)
            return await reader.read()
    except (ConnectionError, TimeoutError):
        return b""
    finally:
        writer.close()


async def fuzzed(url: str, seed: int, seconds: float, count: int) -> tuple[Counter[bytes], list[str]]:
    """How often each status was answered; faults, with what was sent. Ends after `seconds` or `count` requests."""
    statuses: Counter[bytes] = Counter()
    faults: list[str] = []
    end_s = time.monotonic() + seconds
    numbers = iter(range(count))

    async def one_after_another() -> None:
        for number in numbers:
            if time.monotonic() > end_s:
                return
            request = made(random.Random(seed * 1_000_003 + number))
            answer = await asked(url, request)
            statuses[answer[9:12]] += 1
            wrong = fault(request, answer)
            if wrong is not None:
                faults.append(f"{wrong}: seed {seed}, request {number}: {request[:400]!r} -> {answer[:400]!r}")

    await asyncio.gather(*(one_after_another() for _ in range(8)))
    return statuses, faults


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.raw_requests", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, default=1, help="1, or 3: one broker")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        async with target(Path(directory), given.nodes) as node:
            statuses, faults = await fuzzed(node.url, given.seed, given.seconds, sys.maxsize)
            await asyncio.to_thread(still_works, node.url)
            faults += node.trouble()
    print(*faults, sep="\n")
    print("answers:", *(f"{status.decode()}x{count}" for status, count in sorted(statuses.items())))
    print(f"{len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
