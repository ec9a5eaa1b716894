"""Scopes: what they allow, and that anything else allows nothing."""

from __future__ import annotations

import re
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.oauth2.scopes import SCOPES_MAX, granted, matches, pattern


def test_kinds_vhosts_and_names() -> None:
    grants = granted(["mq.read:%2F/orders.*", "mq.write:prod/*", "mq.configure:*/tmp-*-x"], "mq.")
    assert grants.allowed("/", "read", "orders.de")
    assert not grants.allowed("/", "write", "orders.de")
    assert not grants.allowed("/", "read", "order")
    assert grants.allowed("prod", "write", "anything")
    assert grants.allowed("prod", "write", ""), "the default exchange is amq.default"
    assert grants.allowed("any", "configure", "tmp-1-x")
    assert not grants.allowed("any", "configure", "tmp-x")
    assert grants.enters("whatever"), "a star names all vhosts"
    assert not granted(["mq.read:%2F/orders.*"], "mq.").enters("prod")


def test_routing_keys() -> None:
    grants = granted(["read:v/topics/a.*", "write:v/topics"], "")
    assert grants.topic_allowed("v", "read", "topics", "a.b")
    assert not grants.topic_allowed("v", "read", "topics", "b")
    assert grants.topic_allowed("v", "write", "topics", "anything")
    assert not grants.topic_allowed("v", "write", "others", "anything")


def test_tags() -> None:
    grants = granted(["mq.tag:administrator", "mq.tag:administrator", "mq.tag:god", "tag:monitoring"], "mq.")
    assert grants.tags == ("administrator",)
    assert not grants.enters("/"), "a tag opens no vhost"


@pytest.mark.parametrize(
    "scope",
    ["mq.read", "mq.read:", "mq.read:v", "mq.read:/q", "mq.read:v/q/k/x", "mq.READ:*/*", "mq.delete:*/*", "mq.:*/*",
     "other.read:*/*", "read:*/*", "mq.read:%FF/*", "MQ.read:*/*", "mq.read *:*/*"],
)  # fmt: skip
def test_what_is_none_allows_nothing(scope: str) -> None:
    grants = granted([scope], "mq.")
    assert not any(grants.enters(vhost) for vhost in ("", "/", "v", "*"))
    assert grants.tags == ()


def test_an_escaped_star_is_a_star() -> None:
    grants = granted(["read:%2A/q%2Fx"], "")
    assert grants.enters("*")
    assert not grants.enters("v")
    assert grants.allowed("*", "read", "q/x")


def test_so_many_count_and_no_more() -> None:
    scopes = [f"read:v{number}/*" for number in range(SCOPES_MAX + 1)]
    assert granted(scopes, "").enters(f"v{SCOPES_MAX - 1}")
    assert not granted(scopes, "").enters(f"v{SCOPES_MAX}")


@given(st.lists(st.text("ab/%*.", max_size=4), min_size=1, max_size=5), st.text("ab/%*.", max_size=12))
def test_stars_mean_anything(parts: list[str], name: str) -> None:
    escaped = "*".join(quote(part, safe="") for part in parts)
    wanted = re.fullmatch(".*".join(re.escape(part) for part in parts), name, re.DOTALL) is not None
    assert matches(pattern(escaped), name) == wanted


def test_no_pattern_takes_long() -> None:
    began_s = time.thread_time()
    assert not matches(pattern("*a" * 2_000 + "b"), "a" * 8_000)
    assert time.thread_time() - began_s < 1


def test_names_of_bridges_want_an_administrator_or_a_scope_that_says_so() -> None:
    for scopes, allowed in (
        (["configure:*/*"], False),
        (["configure:*/clusterbroker.mover.*"], True),
        (["configure:*/*", "tag:administrator"], True),
    ):
        assert granted(scopes, "").allowed("/", "configure", "clusterbroker.mover.x") is allowed
