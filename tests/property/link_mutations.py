"""Bugs in what nodes know of recoverable links, each of which `link_lives` must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from clusterbroker.broker.node.link_recovery import LinkRecovery
from clusterbroker.broker.queues.attributes import LINK_DELIVERY
from clusterbroker.broker.queues.link_deliveries import LinkDeliveries, Tagged, value_of
from clusterbroker.broker.queues.log import SAFE, MessageLog
from clusterbroker.broker.remote import asking
from clusterbroker.cluster.ids import LogIndex

Bug = Callable[[], Any]


def never_known() -> Any:
    """What comes again is stored again."""
    return patch.object(LinkDeliveries, "new", lambda *_: None)


def always_again() -> Any:
    """A tag that is known makes any delivery a repeat."""
    real = LinkDeliveries.new

    def new(self: LinkDeliveries, tagged: Tagged, since: int) -> Any:
        return real(self, tagged._replace(again=frozenset(tagged.tags)), since)

    return patch.object(LinkDeliveries, "new", new)


def early_answers() -> Any:
    """A question is answered before all that came before it is committed."""
    return patch.object(asking, "ASK_TAGS", -1), patch.object(asking.Asking, "_answer", _answers_tags)


_answer = asking.Asking._answer


def _answers_tags(self: asking.Asking, attachment: Any, ask: Any, now_ms: int) -> None:
    if ask.what == 7:
        self._tell_tags(attachment, ask)
    else:
        _answer(self, attachment, ask, now_ms)


def late_writers() -> Any:
    """What an older attach says counts too."""

    def since(self: LinkRecovery, queue: Any, link: int, _: int) -> int:
        self._holding[queue] = None
        found = self._node.map.link(LogIndex(link))
        return 0 if found is None else found.since

    return patch.object(LinkRecovery, "since", since)


def unlogged() -> Any:
    """The names are in the owner's memory alone."""

    def note(self: LinkDeliveries, tagged: Tagged, places: Any = None) -> None:
        index = self._by_link.setdefault(tagged.link, {})
        before = len(index)
        for place, tag in enumerate(tagged.tags):
            if places is None or place in places:
                value, name = value_of(tagged.attach, tagged.number + place), LINK_DELIVERY.name((tagged.link, tag))
                index.pop(self._ring.attributes.get(name, 0), None)
                index[value] = tag
                self._ring.attributes[name] = value
        self._changed(tagged.link, before)

    return patch.object(LinkDeliveries, "note", note)


def forgets_later_ones() -> Any:
    """What is said of an earlier delivery of a tag is carried out on a later one."""
    real = LinkDeliveries.forget
    return patch.object(LinkDeliveries, "forget", lambda self, link, _, tags: real(self, link, 2**63, tags))


def keeps_nothing() -> Any:
    """What the client may ask for is forgotten with the rest."""
    real = LinkDeliveries.keep
    return patch.object(LinkDeliveries, "keep", lambda self, link, attach, _: real(self, link, attach, ()))


def ends_unheard() -> Any:
    """The end of a link is not heard of."""
    return patch.object(LinkRecovery, "ended", lambda *_: None)


def forgotten_too_early() -> Any:
    """A queue says that it has forgotten before that is committed."""
    at_once = patch.object(MessageLog, "when_durable", lambda _, then: then())
    return at_once, patch.object(asking.Asking, "_answer", _forgets_at_once)


def _forgets_at_once(self: asking.Asking, attachment: Any, ask: Any, now_ms: int) -> None:
    _answer(self, attachment, ask, now_ms)
    if ask.what == asking.ASK_FORGET:
        self._purges.append((*self._purges.pop()[:3], SAFE))


MUTATIONS: Final[dict[str, Bug]] = {
    bug.__name__: bug
    for bug in (
        never_known, always_again, early_answers, late_writers, unlogged, forgets_later_ones, keeps_nothing,
        ends_unheard, forgotten_too_early,
    )
}  # fmt: skip


@contextmanager
def put_in(bug: Bug) -> Iterator[None]:
    """The bug is in the code for the block."""
    patches = bug()
    patches = patches if isinstance(patches, tuple) else (patches,)
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()
