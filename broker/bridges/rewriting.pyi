class Parcel:
    count: int
    frames: bytearray
    flagged: bytes
    priorities: bytes
    prints: bytes
    others: list[tuple[int, int, bytes]]
    offsets: list[int]
    def number(self, first: int) -> None: ...
    def number_each(self, numbers: list[int]) -> None: ...

class Rewriter:
    messages: int
    def __init__(
        self,
        exchange: str,
        routing_key: str | None,
        producer: bytes,
        hop: bytes,
        frame_max: int,
        source_frame_max: int,
        content_max: int,
        stream: bool = False,
    ) -> None: ...
    def feed(self, data: bytes) -> Parcel: ...
