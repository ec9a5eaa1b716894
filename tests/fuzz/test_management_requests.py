"""A few made-up requests at one node and at one of three; the commands beside this file send as many as you like."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest

from tests.fuzz import management_requests, raw_requests

pytestmark = [pytest.mark.faults, pytest.mark.campaign]


@pytest.mark.parametrize(("nodes", "examples"), [(1, 3), (3, 2)])
async def test_what_the_document_allows_is_answered_as_it_says(tmp_path: Path, nodes: int, examples: int) -> None:
    pytest.importorskip("schemathesis")
    async with management_requests.target(tmp_path, nodes) as target:
        code, said = await asyncio.to_thread(management_requests.requested, target.url, examples, 1, "fuzzing")
        assert code == 0, said[-6000:]
        answers = {status: int(count) for status, count in re.findall(r" (\d+)x(\d+)", said)}
        assert sum(answers.values()) > 100 * examples
        assert answers["200"] > sum(answers.values()) / 10, f"most requests were about nothing: {answers}"
        await asyncio.to_thread(management_requests.still_works, target.url)
        assert not target.trouble()


async def test_what_no_library_would_send_is_refused(tmp_path: Path) -> None:
    async with management_requests.target(tmp_path, 1) as target:
        statuses, faults = await raw_requests.fuzzed(target.url, 2, 120, 600)
        assert not faults
        assert {b"200", b"400", b"404"} <= statuses.keys()
        await asyncio.to_thread(management_requests.still_works, target.url)
        assert not target.trouble()


def test_a_number_makes_the_same_request_again() -> None:
    assert raw_requests.made(random.Random(7)) == raw_requests.made(random.Random(7))


def test_what_is_wrong_with_an_answer_is_seen() -> None:
    get, check = b"GET /api/queues HTTP/1.1\r\n\r\n", b"GET /api/health/checks/alarms HTTP/1.1\r\n\r\n"
    json = b"\r\ncontent-type: application/json\r\n\r\n"
    assert raw_requests.fault(get, b"HTTP/1.1 200 OK" + json + b"[]") is None
    assert raw_requests.fault(get, b"HTTP/1.1 404 No" + json + b'{"error": "x", "reason": "y"}') is None
    assert raw_requests.fault(check, b"HTTP/1.1 503 No" + json + b'{"status": "failed"}') is None
    assert raw_requests.fault(get, b"HTTP/1.1 503 No" + json + b'{"error": "x", "reason": "y"}') == "a 5xx"
    assert raw_requests.fault(check, b"HTTP/1.1 500 No" + json + b"{}") == "a 5xx"
    assert raw_requests.fault(get, b"HTTP/1.1 400 No" + json + b"{}") == "a refusal without error and reason"
    assert raw_requests.fault(get, b"<html>") == "no HTTP"
    assert raw_requests.fault(get, b"HTTP/1.1 201 Made\r\nset-cookie: x=1\r\n\r\n") == "a head that the request wrote"
