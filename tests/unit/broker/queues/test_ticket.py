"""A ticket is passed as often as it was held, and speaks once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.queues.ticket import Ticket


@given(st.lists(st.booleans(), max_size=30))
def test_it_speaks_once_and_when_the_last_has_passed(steps: list[bool]) -> None:
    spoken: list[Ticket] = []
    ticket = Ticket(3, 5, spoken.append)
    held = 1
    for hold in steps:
        if hold:
            ticket.hold()
            held += 1
        elif held > 1:
            ticket.pass_()
            held -= 1
        assert not ticket.done
    assert spoken == []
    for _ in range(held):
        ticket.pass_()
    assert spoken == [ticket]
    assert ticket.done
    with pytest.raises(AssertionError, match="passed as often as it was held"):
        ticket.pass_()
