"""Short time slices: a request to the kernel for quick wake-ups.

Theory. A message passes a dozen short pieces of work on three nodes and as many sleeps: for a socket, for the disk,
for an acknowledgement. Linux lets a running thread finish a slice (about 3 ms, or until the next tick) before it
looks at woken ones, so on a busy machine each of these sleeps may end milliseconds late. A thread with a shorter
slice than the others is let in at once (EEVDF, Linux 6.12 and later). It gets no larger share of the processor for
it: after its short slices it waits as long as before.

Only threads under the default policy are changed, and only their slice: another policy was chosen on purpose. An
older kernel accepts the request without effect; other systems are not asked.
"""

from __future__ import annotations

import platform
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

SLICE_NS: Final = 100_000
"""The shortest that the kernel takes."""
SCHED_OTHER: Final = 0
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""struct sched_attr: size, policy, flags, nice, priority, runtime (ns; here: the slice), deadline, period."""
_CALLS: Final = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}
"""Numbers of sched_setattr and sched_getattr."""


def shorten_slices(slice_ns: int = SLICE_NS) -> int:
    """Asks for all threads of this process; those that they start inherit it. How many have it now, 0 where the system
    knows nothing of the kind."""
    calls = _CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return 0
    with suppress(OSError):
        return sum(_shorten(calls, int(thread.name), slice_ns) for thread in Path("/proc/self/task").iterdir())
    return 0


def slice_of(thread: int = 0) -> int | None:
    """The slice of a thread (0: the one that asks) in ns; None where nobody can tell."""
    calls = _CALLS.get(platform.machine())
    attributes = _read(calls[1], thread) if sys.platform == "linux" and calls is not None else None
    return None if attributes is None else attributes[5]


def _shorten(calls: tuple[int, int], thread: int, slice_ns: int) -> bool:
    attributes = _read(calls[1], thread)
    if attributes is None or attributes[1] != SCHED_OTHER:
        return False
    size, policy, flags, nice = attributes[:4]
    return _call(calls[0], thread, _ATTRIBUTES.pack(size, policy, flags, nice, 0, slice_ns, 0, 0)) is not None


def _read(call: int, thread: int) -> tuple[int, ...] | None:
    raw = _call(call, thread, bytes(_ATTRIBUTES.size), _ATTRIBUTES.size)
    if raw is None:
        return None
    return (_ATTRIBUTES.size, *_ATTRIBUTES.unpack(raw)[1:])  # a newer kernel tells of fields that are not asked for


def _call(number: int, thread: int, attributes: bytes, *size: int) -> bytes | None:
    """The attributes as the kernel leaves them; None: it refused, or a sandbox did."""
    import ctypes  # takes as long as a good part of a start

    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return None
    arguments = [ctypes.c_long(number), ctypes.c_int(thread), buffer, *(ctypes.c_uint(one) for one in size)]
    if call(*arguments, ctypes.c_uint(0)):
        return None
    return buffer.raw
