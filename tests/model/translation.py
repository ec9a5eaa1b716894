"""Messages in the format of one consumer: the specification of `broker/content/translation.pyx`.

The compiled module remembers the last header that it translated, for publishers repeat themselves, and knows the usual
forms of headers of both formats; for whatever is unusual it asks the same functions as this model.
"""

from __future__ import annotations

from typing import Any, cast

from clusterbroker.broker.content import formats, message
from clusterbroker.broker.content.formats import SECTIONS
from tests.model.record import Message


class Translation:
    """`to`: the format that the consumer reads. A message of it comes back as it is, or, as sections, without
    annotations that the broker gives each delivery."""

    def __init__(self, to: int) -> None:
        self.to = to

    def translated(self, one: Message) -> Message:
        """Raises what `formats.translate` raises."""
        made = formats.translate(cast(Any, one), self.to)
        return cast(Message, message.without_own(made) if self.to == SECTIONS else made)
