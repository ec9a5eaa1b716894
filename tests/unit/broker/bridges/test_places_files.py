"""What a URI may not do: repeat its password, or hold the loop by a file that never ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterbroker.broker.bridges.places import place


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
