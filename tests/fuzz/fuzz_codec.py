"""Coverage-guided fuzzing of the frame decoder: codec and model read the same bytes and must agree; neither may crash.

    python tests/fuzz/fuzz_codec.py [-max_total_time=120] [more options of libFuzzer] [folders or files]

Without a folder it starts from the seeds in tests/fuzz/corpus/codec and keeps what it finds in a temporary one. An
input is one octet that says how the rest is sliced, then the bytes of a connection behind its protocol header.
Atheris guides by the branches of the model, which are the grammar's; the codec only has to agree.
The seeds are written by `python tests/fuzz/fuzz_codec.py --write-seeds`; tests/fuzz/test_codec_corpus.py replays
them without atheris.
"""

from __future__ import annotations

import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

CORPUS = Path(__file__).parent / "corpus" / "codec"
SLICES = (0, 1, 2, 3, 7, 8, 13, 64)
FRAME_MAX = 4096
MESSAGE_BYTES_MAX = 1024
PARTIAL_BYTES_MAX = 4096


def told(event: Any) -> tuple[Any, ...]:
    """An event as a value that both must agree about."""
    if isinstance(event, Exception):
        return ("fault", *event.args)
    if hasattr(event, "messages"):
        messages = [
            (m.address, m.payload, m.header_length, m.flags, m.priority, m.time_ms, m.ttl_ms) for m in event.messages
        ]
        refusal = event.refusal and event.refusal.args
        marks = (event.channel, event.address, event.mandatory, event.immediate, event.flags, event.size)
        return ("published", *marks, event.exchange, event.routing_key, refusal, messages)
    if hasattr(event, "acks"):
        return ("acked", event.channel, event.acks)
    return ("method", event.channel, event.payload)


def answers(module: Any, step: int, data: bytes) -> list[Any]:
    """All that the decoder says to `data` in slices of `step` bytes (0: in one piece)."""
    decoder = module.FrameDecoder(FRAME_MAX, MESSAGE_BYTES_MAX)
    decoder.opened = True
    decoder.partial_bytes_max = PARTIAL_BYTES_MAX
    said: list[Any] = []
    step = step or max(len(data), 1)
    for at in range(0, len(data), step):
        events = decoder.feed(decoder.rest + data[at : at + step], at)
        said.append((list(map(told, events)), decoder.rest, decoder.failed))
        if decoder.failed:
            break
    return said


def replay(data: bytes, model: Any, codec: Any) -> list[Any]:
    """Feeds one input to both; what they said when they agree. Raises AssertionError when they do not."""
    step = SLICES[data[0] % len(SLICES)] if data else 0
    wanted, found = answers(model, step, data[1:]), answers(codec, step, data[1:])
    assert wanted == found, f"they disagree:\n  model {wanted}\n  codec {found}"
    return wanted


def frame(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes((end,))


def publish(body: bytes, channel: int = 1, key: bytes = b"key", properties: bytes = b"\x00\x00") -> list[bytes]:
    method = b"\x00\x3c\x00\x28\x00\x00\x02ex" + bytes((len(key),)) + key + b"\x00"
    head = struct.pack(">HHQ", 60, 0, len(body)) + properties
    return [frame(1, channel, method), frame(2, channel, head), frame(3, channel, body)]


def seeds() -> dict[str, bytes]:
    """The first inputs, by name: each is slicing octet and bytes."""
    every = (
        b"\xff\xfc\x01t\x01e\x00\x00\x00\x04\x01kt\x01\x02\x05\x01c\x01r\x0260\x01i"
        + bytes(8)
        + b"\x01t\x01u\x01a\x01c"
    )
    start_ok = b"\x00\x0a\x00\x0b\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x0c\x00guest\x00guest\x05en_US"
    handshake = (
        frame(1, 0, start_ok)
        + frame(1, 0, struct.pack(">HHHIH", 10, 31, 2047, 131072, 60))
        + frame(1, 0, b"\x00\x0a\x00\x28\x01/\x00\x00")
        + frame(1, 1, b"\x00\x14\x00\x0a\x00")
        + frame(8, 0, b"")
    )
    acks = b"".join(frame(1, 1 + tag % 2, struct.pack(">HHQB", 60, 80, tag, tag == 3)) for tag in (1, 3, 2, 5, 2**63))
    plain, other = publish(b"body"), publish(b"x" * 30, 2, b"other", b"\x10\x00\x02")
    parts = [frame(3, 1, b"bo"), frame(3, 1, b""), frame(3, 1, b"dy")]
    woven = [plain[0], other[0], plain[1], other[1], parts[0], other[2], *parts[1:]]
    lengths = b"".join(struct.pack(">BHI", 1, 1, size) for size in (0x7FFFFFFF, 0xFFFFFFFF, 4089))
    inputs = {
        "handshake": handshake,
        "publishes": b"".join(plain * 3 + other * 2 + publish(b"")[:2] + plain),
        "every_property": b"".join(publish(b"body", properties=every) * 2),
        "acks": acks + plain[0] + acks,
        "split_content": b"".join([*plain[:2], *parts, *plain]),
        "interleaved": b"".join(woven + other),
        "dead_lengths": lengths,
        "length_of_header_table": b"".join(publish(b"b", properties=b"\x20\x00\xff\xff\xff\xff")),
        "body_size_of_64_bits": plain[0] + frame(2, 1, struct.pack(">HHQH", 60, 0, 2**64 - 1, 0)) + plain[2],
        "oversize": b"".join(publish(b"y" * 1025) + plain),
        "too_much_at_once": b"".join(
            b"".join(publish(b"z" * 1000, channel)[:2]) + frame(3, channel, b"z" * 999) for channel in range(1, 6)
        ),
        "bad_expiration": b"".join(publish(b"b", properties=b"\x01\x00\x03-10") + plain),
        "bad_end": frame(1, 1, b"\x00\x0a\x00\x0a", 0xCD),
        "bad_name": b"".join(publish(b"b", key=b"\xed\xa0\x80")),
        "bad_address": frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\xff\x00\x00"),
        "wrong_order": plain[0] + plain[2],
        "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }
    return {f"{name}.{step}": bytes((step,)) + data for name, data in inputs.items() for step in (0, 3)}


def main() -> int:
    if sys.argv[1:] == ["--write-seeds"]:
        CORPUS.mkdir(parents=True, exist_ok=True)
        for name, data in seeds().items():
            (CORPUS / name).write_bytes(data)
        return 0
    try:
        import atheris
    except ImportError:
        print("atheris is not installed here: pip install atheris", file=sys.stderr)
        return 1
    sys.path.insert(0, str(Path(__file__).parents[2]))
    with atheris.instrument_imports(include=["tests.model.codec"]):
        from tests.model import codec as codec_model
    from clusterbroker.broker.wire.amqp091 import codec as codec_compiled

    arguments = list(sys.argv)
    with tempfile.TemporaryDirectory() as found:
        if all(argument.startswith("-") for argument in arguments[1:]):
            arguments += [found, str(CORPUS)]
        atheris.Setup(arguments, lambda data: replay(data, codec_model, codec_compiled) and None)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
