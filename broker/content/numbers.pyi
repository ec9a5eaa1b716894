from collections.abc import Mapping, Sequence
from typing import Any, Final

from clusterbroker.journal.record import Message

PRODUCER_BYTES_MAX: Final = 255
NUMBER_MAX: Final = 4611686018427387904

Run = tuple[bytes, list[int], list[Message]] | tuple[None, None, list[Message]]

def named_in(headers: Mapping[str, Any] | None) -> tuple[bytes, int] | None: ...
def is_numbered(headers: Mapping[str, Any]) -> bool: ...
def runs(messages: Sequence[Message]) -> list[Run] | None: ...
def are_rising(numbers: Sequence[int]) -> bool: ...
