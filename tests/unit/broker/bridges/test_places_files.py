"""What a URI may not do: repeat its password, or hold the loop by a file that never ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterbroker.broker.bridges.places import masked, place


def test_a_pipe_is_no_file_of_certificates(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no regular file"):
        place(f"amqps://h?cacertfile={pipe}").context()


@pytest.mark.parametrize("uri", ["amqp://user:sec/ret@h", "amqp://user:sec\u2100ret@h"])
def test_a_uri_that_cannot_be_read_does_not_tell_its_password(uri: str) -> None:
    with pytest.raises(ValueError) as refused:
        place(uri)
    assert "sec" not in str(refused.value)


SHOWN = {
    "amqp://u:s3cret@h/v": "amqp://u:***@h/v",
    "AMQP://u:s3cret@h": "AMQP://u:***@h",
    "amqp://u@x:s3cret@h": "amqp://u@x:***@h",
    "amqp://u:12#s3cret@h/v": "amqp://u:***@h/v",
    "amqp://u:12/s3cret@h/v": "amqp://u:***@h/v",
    "amqp://u:12?s3cret@h": "amqp://u:***@h",
    "amqp://u:s3#cret@h/v": "amqp://***",
    "amqp://u:s3cret": "amqp://***",
    " amqp://u:s3cret@h/v": "amqp://***",
    "\namqp://u:s3cret@h": "amqp://***",
    "amqp://u:s3cret\n@h": "amqp://***",
    "amqp:\\\\u:s3cret@h": "amqp://***",
    "see amqp://u:s3cret@h": "***",
    "amqps://h?keyfile=/k&password=s3cret&verify=verify_none": "amqps://h?keyfile=/k&password=***&verify=verify_none",
    "amqp://h:5672/v": "amqp://h:5672/v",
    "at 10:30, by a@b": "at 10:30, by a@b",
}


@pytest.mark.parametrize("text", SHOWN)
def test_a_password_is_not_shown_however_its_uri_is_written(text: str) -> None:
    assert masked({"src-uri": [text]}) == {"src-uri": [SHOWN[text]]}


def test_white_space_before_a_uri_is_refused() -> None:
    for uri in (" amqp://h", "\u2003amqp://h"):
        with pytest.raises(ValueError, match="begins with white space"):
            place(uri)
