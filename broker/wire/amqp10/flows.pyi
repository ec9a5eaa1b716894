from typing import Any

def read(frame: bytes, offset: int) -> tuple[list[Any], int] | None: ...
def written(
    next_incoming_id: int | None,
    incoming_window: int,
    next_outgoing_id: int,
    outgoing_window: int,
    handle: int | None,
    delivery_count: int | None,
    link_credit: int | None,
    available: int | None,
    drain: bool,
    echo: bool,
) -> bytes | None: ...
