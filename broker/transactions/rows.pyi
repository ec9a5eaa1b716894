from collections.abc import Callable
from typing import Any

from clusterbroker.journal.record import Message

def next_rows(
    ring: Any, first: int, last: int, rows_max: int, bytes_max: int
) -> tuple[list[int], list[Message | None], list[tuple[int, int, int, int]]]: ...
def divide(
    seqs: list[int],
    messages: list[Message],
    ways: dict[bytes, tuple[bytes, list[Any]]],
    way_of: Callable[[Message, bool], tuple[bytes, list[Any]]],
    now_ms: int,
) -> list[int]: ...
def looks_alone(message: Message) -> bool: ...
def settle_rows(ring: Any, seqs: list[int]) -> None: ...
