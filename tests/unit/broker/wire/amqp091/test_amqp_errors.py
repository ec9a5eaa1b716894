"""Reply codes, the weight of errors, and the text that a client reads."""

from __future__ import annotations

import pickle

import pytest

from clusterbroker.broker.wire.amqp091 import errors
from clusterbroker.broker.wire.amqp091.errors import AmqpError, ChannelError, ConnectionFault, ReplyCode

SOFT = {
    "content_too_large": 311,
    "no_route": 312,
    "no_consumers": 313,
    "access_refused": 403,
    "not_found": 404,
    "resource_locked": 405,
    "precondition_failed": 406,
}
HARD = {
    "connection_forced": 320,
    "invalid_path": 402,
    "frame_error": 501,
    "syntax_error": 502,
    "command_invalid": 503,
    "channel_error": 504,
    "unexpected_frame": 505,
    "resource_error": 506,
    "not_allowed": 530,
    "not_implemented": 540,
    "internal_error": 541,
}


@pytest.mark.parametrize(("name", "code"), [*SOFT.items(), *HARD.items()])
def test_each_constructor_gives_its_code_its_weight_and_its_name(name: str, code: int) -> None:
    error = getattr(errors, name)("because", 50, 10)
    assert type(error) is (ChannelError if name in SOFT else ConnectionFault)
    assert (error.code, error.text, error.class_id, error.method_id) == (code, "because", 50, 10)
    assert error.reply_text == f"{name.upper()} - because"


def test_every_reply_code_has_a_constructor() -> None:
    assert {*SOFT.values(), *HARD.values()} == {*ReplyCode} - {ReplyCode.REPLY_SUCCESS}


def test_a_code_of_the_other_weight_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="404 does not belong to ConnectionFault"):
        ConnectionFault(404, "no queue")
    with pytest.raises(AssertionError, match="502 does not belong to ChannelError"):
        ChannelError(502, "syntax")
    with pytest.raises(AssertionError, match="999"):
        AmqpError(999, "no such code")


def test_a_text_that_fits_is_kept_whole() -> None:
    text = "x" * (255 - len("NOT_FOUND - "))
    assert errors.not_found(text).reply_text == "NOT_FOUND - " + text


def test_a_long_text_ends_in_dots_at_255_bytes() -> None:
    reply_text = errors.not_found("x" * 300).reply_text
    assert reply_text == "NOT_FOUND - " + "x" * 240 + "..."
    assert len(reply_text) == 255


@pytest.mark.parametrize("pad", range(4))
def test_no_character_is_cut_in_two(pad: int) -> None:
    reply_text = errors.not_found("x" * pad + "\N{GRINNING FACE}" * 100).reply_text
    assert len(reply_text.encode()) <= 255
    assert set(reply_text.removeprefix("NOT_FOUND - ")) <= set("x.\N{GRINNING FACE}")


def test_a_text_with_bytes_that_are_no_text_becomes_text() -> None:
    assert errors.not_found("no queue '\udcff'").reply_text == "NOT_FOUND - no queue '?'"


def test_an_empty_explanation_leaves_the_name_alone() -> None:
    assert errors.connection_forced("").reply_text == "CONNECTION_FORCED"


def test_at_blames_a_method_once() -> None:
    error = errors.not_found("no queue").at(50, 20)
    assert (error.class_id, error.method_id) == (50, 20)
    assert error.at(60, 40) is error
    assert (error.class_id, error.method_id) == (50, 20)


def test_an_error_reads_well_and_survives_pickle() -> None:
    error = errors.not_allowed("vhost x not found", 10, 40)
    assert str(error) == "530 NOT_ALLOWED - vhost x not found"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args) == (ConnectionFault, error.args)
