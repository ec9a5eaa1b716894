"""Frames to batches and back: the compiled half or its twin (`journal.build`).

`codec_pure.py` draws the frame and is the specification; `codec_fast.pyx` does the same per message in C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterbroker.journal.build import COMPILED

if TYPE_CHECKING or not COMPILED:
    from clusterbroker.broker.amqp.codec_pure import (
        Acked,
        FrameDecoder,
        MethodReceived,
        OutBuffer,
        Published,
        make_message,
        numbered,
    )
else:
    from clusterbroker.broker.amqp.codec_fast import (
        Acked,
        FrameDecoder,
        MethodReceived,
        OutBuffer,
        Published,
        make_message,
        numbered,
    )

__all__ = ["Acked", "FrameDecoder", "MethodReceived", "OutBuffer", "Published", "make_message", "numbered"]
