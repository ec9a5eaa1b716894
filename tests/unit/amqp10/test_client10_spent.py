"""Tags of settled deliveries are free when the peer has said so, and not before."""

from __future__ import annotations

from clusterbroker.amqp10.client.spent import SPENT_MAX, SpentTags


def spent(*tags: bytes) -> SpentTags:
    found = SpentTags()
    found.answers = True
    for tag in tags:
        found.add(tag)
    return found


def test_a_tag_is_free_when_its_question_is_answered() -> None:
    tags = spent(b"a")
    number = tags.ask()
    assert number is not None
    tags.add(b"b")
    assert tags.ask() is None, "one question at a time"
    tags.answered(number)
    assert b"a" not in tags
    assert b"b" in tags
    again = tags.ask()
    assert again not in (None, number)
    tags.answered(number)
    assert b"b" in tags, "an answer to an older question says nothing"


def test_of_nothing_nobody_asks() -> None:
    assert spent().ask() is None


def test_what_was_not_answered_on_an_attach_never_is() -> None:
    """The settlement may have been lost with the connection, and its answer too."""
    tags = spent(b"asked")
    number = tags.ask()
    assert number is not None
    tags.add(b"spent")
    tags.detached()
    tags.answered(number)
    tags.add(b"later")
    last = tags.ask()
    assert last is not None
    tags.answered(last)
    assert [tag in tags for tag in (b"asked", b"spent", b"later")] == [True, True, False]


def test_a_peer_that_answers_nothing_frees_tags_with_their_settlement() -> None:
    tags = spent()
    tags.answers = False
    tags.add(b"a")
    assert b"a" not in tags


def test_there_is_an_end_to_it() -> None:
    tags = spent(*(number.to_bytes(4, "big") for number in range(SPENT_MAX - 1)))
    assert not tags.full
    tags.add(b"last")
    assert tags.full
