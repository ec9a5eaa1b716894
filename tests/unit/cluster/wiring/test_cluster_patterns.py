"""Patterns: RabbitMQ's usual ones work, catastrophic ones are linear, look-aheads at the start are understood."""

import re
import time

import pytest

from clusterbroker.cluster.wiring.patterns import PATTERN_CHARS_MAX, Pattern, PatternError, literal_begin, matches

NAMES = ["", "a", "amq.topic", "amq-x", "orders.eu", "xamq.", "a\nb", "b|c", "x)a"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".*",
        "^$",
        "^orders\\.",
        "eu$",
        r"^(?!amq\.).*",
        r"^(?!amq\.)(?!orders).*$",
        r"^(?=o)(?!orders\.us).*",
        r"^(?!a[)|]|x\)).*",
        "^(amq|orders)[.]",
        r"^orders\.eu",
        "^b*$",
        "^amqq?",
        "^x{0}a",
        "^amq-+x",
        "^amq|b",
        "(?i)^AMQ",
    ],
)
def test_agrees_with_pythons_engine(text: str) -> None:
    for name in NAMES:
        expected = re.search(text.replace("$", r"\Z"), name) is not None
        assert Pattern(text).matches(name) is expected, name


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        (r"^tenant1\.eu", "tenant1.eu"),
        (r"^a\-b", "a-b"),
        ("^ab+", "ab"),
        ("^ab*", "a"),
        ("^ab?", "a"),
        ("^ab{0,1}", "a"),
        (r"^a\.*", "a"),
        (r"^a\d", "a"),
        (r"^a\Q.b", "a"),
        ("^a.b", "a"),
        ("^a$", "a"),
        ("^a|b", ""),
        ("^(ab)", ""),
        ("^(?i)ab", ""),
        ("ab", ""),
        ("", ""),
    ],
)
def test_what_names_begin_with_in_which_a_pattern_is_found(text: str, begin: str) -> None:
    assert literal_begin(text) == begin.encode()


def test_catastrophic_patterns_take_linear_time() -> None:
    began = time.thread_time()
    assert not Pattern("^(a+)+$").matches("a" * 50_000 + "b")
    assert not Pattern("^(a|a)*b$").matches("a" * 50_000)
    assert time.thread_time() - began < 2.0


@pytest.mark.parametrize("text", ["(a", "a" * (PATTERN_CHARS_MAX + 1), "(a{900}){900}", "^(?!a)*b", "a(?=b)", "\ud800"])
def test_refused_with_a_reason(text: str) -> None:
    with pytest.raises(PatternError, match=r"."):
        Pattern(text)


def test_a_stored_pattern_that_is_refused_matches_nothing() -> None:
    assert not matches("(", "(")
