"""What ends a mover because of one message or frame: trying again would be no use.

ValueError
    Malformed    a frame of the source is none of AMQP 0-9-1
    Unfit        a message that the destination cannot take as it is
    Looped       a message that has passed here before
"""

from __future__ import annotations


class Malformed(ValueError):
    """A frame of the source is none of AMQP 0-9-1."""


class Unfit(ValueError):
    """A message that the destination cannot take as it is."""


class Looped(ValueError):
    """A message has passed here before; the text is the bridges that it has been through."""
