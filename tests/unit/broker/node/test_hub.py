"""The hub's own rules; what peers say wrongly is in test_bad_frames."""

from __future__ import annotations

import pytest

from clusterbroker.broker.node.hub import PIECE_BYTES, Hub
from clusterbroker.broker.remote.messages import Reply


def test_a_head_that_cannot_be_encoded_is_the_fault_of_whoever_gave_it() -> None:
    hub = Hub("a", lambda: 1)
    hub.link("b", 1)
    for payload in ((), (b"x" * (3 * PIECE_BYTES),)):
        with pytest.raises(ValueError, match="Reply cannot be said"):
            hub.send("b", Reply("\udcff"), payload)
        assert not any(hub.take().values()), "no piece of it is on its way"
    assert hub.send("b", Reply("key"))
