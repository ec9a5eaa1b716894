"""Fuzzing of AMQP 1.0, guided by coverage: frames in its decoder, and whole connections at a node.

    python tests/fuzz/fuzz_amqp10.py codec10|front10 [-runs=N] [-seed=S] [-max_total_time=SECONDS] [--keep]
    python tests/fuzz/fuzz_amqp10.py --write-seeds

    codec10   the bytes of a connection that is open, through the codec and its model: they must agree
    front10   a connection from its first octet on, at a node with queues: SASL, performatives, sessions, links,
              transactions. Nothing may be raised, what the node says must be frames, and other clients must be served

An input is one octet that says how the rest is sliced, then bytes. Seeds are in tests/fuzz/corpus, by target, and
test_amqp10_corpus.py replays them. With atheris libFuzzer is the guide, and takes all of its options. Without it the
guide is here: an input that reaches a line for the first time is kept for this run, with `--keep` in the corpus.
"""

from __future__ import annotations

import hashlib
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

CORPUS: Final = Path(__file__).parent / "corpus"
SLICES: Final = (0, 1, 2, 3, 7, 8, 13, 64)
FRAME_MAX: Final = 700
MESSAGE_BYTES_MAX: Final = 400
LINKS: Final = ((0, 0), (0, 1), (1, 0))
INPUT_BYTES_MAX: Final = 4096
NUMBERS: Final = (b"\0", b"\x01", b"\x7f", b"\x80", b"\xff", b"\0\0\0\x08", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff")
CODES: Final = bytes.fromhex("00 4041 4243 4445 5253 7071 8083 98 a0a1a3 b0b1b3 c0c1 d0d1 e0f0")
"""Constructors (1.6), and some that are none."""


def slices(data: bytes) -> list[bytes]:
    """What is read at a time."""
    step = SLICES[data[0] % len(SLICES)] if data else 0
    rest = data[1:]
    return [rest[at : at + step] for at in range(0, len(rest), step)] if step else [rest]


# -- the decoder


def decoded(module: Any, data: bytes) -> list[Any]:
    """All that a decoder says to an input."""
    from tests.support.decoded10 import told

    decoder = module.FrameDecoder(FRAME_MAX, MESSAGE_BYTES_MAX)
    links = [decoder.open_link(channel, handle, b"\0\1%d" % handle, handle) for channel, handle in LINKS]
    links[-1].raw = True
    said: list[Any] = []
    for at, part in enumerate(slices(data)):
        events = [told(event) for event in decoder.feed(decoder.rest + part, 1000 + at)]
        last = next((place for place, event in enumerate(events) if _ends_the_connection(event)), None)
        if last is not None:
            return [*said, events[: last + 1]]
        said.append(events)
        said.append((decoder.failed, decoder.heard, decoder.partial_bytes, decoder.rest))
        said.append([(link.partial, link.tag) for link in links])
        if decoder.failed:
            break
    return said


def _ends_the_connection(event: tuple[Any, ...]) -> bool:
    """Whether the front cannot decode a frame that it is handed: nothing behind that is heard."""
    from clusterbroker.broker.wire.amqp10.performatives import decode
    from clusterbroker.broker.wire.amqp10.types import DecodeError

    if event[0] != "frame":
        return False
    try:
        decode(event[3])
    except DecodeError:
        return True
    return False


def replay_codec(data: bytes) -> list[Any]:
    """What both said. Raises AssertionError when they disagree."""
    from clusterbroker.broker.wire.amqp10 import codec as compiled
    from tests.model import codec10 as model

    wanted, found = decoded(model, data), decoded(compiled, data)
    assert wanted == found, f"they disagree:\n  model {wanted}\n  codec {found}"
    return wanted


# -- a connection


def replay_front(data: bytes) -> list[Any]:
    """The performatives that the node said, and how it ended the connection. Raises what harms anybody else."""
    from tests.unit.broker.fronts.amqp10.harness import Peer, world_with

    world = world_with("q", "other")
    other = Peer(world).enter()
    mine = other.sender("mine", "/queues/other")
    peer = Peer(world)
    said: list[Any] = []
    for part in slices(data):
        if peer.ended is not None:
            break
        said += peer.raw(part)
    if peer.ended is None:
        said += peer.raw(b"")
    mine.send(b"still served")
    assert other.receiver("also mine", "/queues/other", credit=1000).bodies()[-1:] == [b"still served"]
    if peer.ended is None:
        peer.leave()
        world.turn()
    heard = [type(each.body).__name__ if each.channel >= 0 else each.body for each in said]
    return [*heard, peer.ended]


REPLAYS: Final[dict[str, Callable[[bytes], list[Any]]]] = {"codec10": replay_codec, "front10": replay_front}
GUIDES: Final = {
    "codec10": ("tests/model/codec10.py", "tests/model/sections10.py", "broker/wire/amqp10/"),
    "front10": ("broker/fronts/amqp10/", "broker/wire/amqp10/", "broker/fronts/opening.py"),
}
"""Files whose lines guide: parts of their paths."""

# -- without atheris


class Coverage:
    """Lines that were never reached before (sys.monitoring; before Python 3.12 sys.settrace, which is slower)."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        self._parts = parts
        self._seen: set[tuple[CodeType, int]] = set()
        self.new = self.total = 0

    def __enter__(self) -> Coverage:
        if sys.version_info < (3, 12):
            sys.settrace(self._trace)
            return self
        monitoring = sys.monitoring
        monitoring.use_tool_id(monitoring.COVERAGE_ID, "fuzz_amqp10")
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, self._line)
        monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.version_info < (3, 12):
            sys.settrace(None)
            return
        monitoring = sys.monitoring
        monitoring.set_events(monitoring.COVERAGE_ID, 0)
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, None)
        monitoring.free_tool_id(monitoring.COVERAGE_ID)

    def _line(self, code: CodeType, _number: int) -> Any:
        if any(part in code.co_filename for part in self._parts):
            self._reached()
        return sys.monitoring.DISABLE

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not any(part in frame.f_code.co_filename for part in self._parts):
            return None
        place = frame.f_code, frame.f_lineno
        if event == "line" and place not in self._seen:
            self._seen.add(place)
            self._reached()
        return self._trace

    def _reached(self) -> None:
        self.new += 1
        self.total += 1

    def of(self, run: Callable[[bytes], Any], data: bytes) -> int:
        """How many lines this input reaches first."""
        self.new = 0
        run(data)
        return self.new


def frames_of(data: bytes) -> list[bytes]:
    """The frames and headers of an input, as far as it has any; the rest is one piece."""
    pieces, at = [], 0
    while at + 8 <= len(data):
        size = 8 if data[at : at + 4] == b"AMQP" else int.from_bytes(data[at : at + 4], "big")
        if not 8 <= size <= len(data) - at:
            break
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]] if at < len(data) else pieces


def mutated(data: bytes, corpus: list[bytes], chance: random.Random) -> bytes:
    """A neighbour: frames are moved, left out, repeated and taken from others, octets change; sizes are made right
    again mostly, else nothing but the size of frames would ever be tried."""
    first, pieces = data[:1] or b"\0", frames_of(data[1:])
    for _ in range(chance.choice((1, 1, 2, 4))):
        kind, place = chance.randrange(8), chance.randrange(len(pieces)) if pieces else 0
        if kind == 0 and pieces:
            del pieces[place]
        elif kind == 1 and pieces:
            pieces.insert(chance.randrange(len(pieces) + 1), pieces[place])
        elif kind == 2:
            others = frames_of(chance.choice(corpus)[1:])
            if others:
                pieces.insert(chance.randrange(len(pieces) + 1), chance.choice(others))
        elif kind == 3 and len(pieces) > 1:
            other = chance.randrange(len(pieces))
            pieces[place], pieces[other] = pieces[other], pieces[place]
        elif kind == 4:
            first = bytes((chance.randrange(len(SLICES)),))
        elif pieces:
            pieces[place] = _octets_changed(pieces[place], chance)
    return (first + b"".join(pieces))[:INPUT_BYTES_MAX]


def _octets_changed(piece: bytes, chance: random.Random) -> bytes:
    at, kind = chance.randrange(len(piece) + 1), chance.randrange(5)
    if kind == 0:
        changed = piece[:at] + bytes((chance.randrange(256),)) + piece[at + 1 :]
    elif kind == 1:
        number = chance.choice(NUMBERS)
        changed = piece[:at] + number + piece[at + len(number) :]
    elif kind == 2:
        changed = piece[:at] + bytes((chance.choice(CODES),)) + piece[at + 1 :]
    elif kind == 3:
        changed = piece[:at] + piece[at + chance.choice((1, 2, 8)) :]
    else:
        changed = piece[:at] + chance.randbytes(chance.choice((1, 2, 8))) + piece[at:]
    if len(changed) >= 8 and changed[:4] != b"AMQP" and chance.random() < 0.9:
        return struct.pack(">I", len(changed)) + changed[4:]
    return changed


def hunt(target: str, runs: int, seed: int, seconds: float, say: Callable[[str], object]) -> dict[str, bytes]:
    """Inputs, by name, that reached lines which none before them did. Raises what an input did, with the input."""
    chance, replay = random.Random(seed), REPLAYS[target]
    corpus = [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]
    found: dict[str, bytes] = {}
    end_s = time.monotonic() + seconds
    with Coverage(GUIDES[target]) as coverage:
        for data in corpus:
            coverage.of(replay, data)
        say(f"{len(corpus)} kept inputs reach {coverage.total} lines")
        for count in range(1, runs + 1):
            data = mutated(chance.choice(corpus), corpus, chance)
            try:
                new = coverage.of(replay, data)
            except BaseException as error:
                error.add_note(f"the input: bytes.fromhex({data.hex()!r})")
                raise
            if new:
                corpus.append(data)
                found[f"found.{hashlib.sha256(data).hexdigest()[:12]}"] = data
            if count % 100 == 0 or count == runs:
                say(f"{count} of {runs} runs, {coverage.total} lines, {len(found)} inputs are new")
            if time.monotonic() >= end_s:
                break
    return found


# -- the first inputs


def seeds(target: str) -> dict[str, bytes]:
    """By name: each is slicing octet and bytes."""
    from tests.fuzz import amqp10_seeds

    inputs: dict[str, bytes] = getattr(amqp10_seeds, target)()
    return {f"{name}.{step}": bytes((step,)) + data for name, data in inputs.items() for step in (0, 3)}


def write(target: str, inputs: Iterable[tuple[str, bytes]]) -> None:
    (CORPUS / target).mkdir(parents=True, exist_ok=True)
    for name, data in inputs:
        (CORPUS / target / name).write_bytes(data)


def main() -> int:
    words = sys.argv[1:]
    if words == ["--write-seeds"]:
        for target in REPLAYS:
            write(target, seeds(target).items())
        return 0
    if not words or words[0] not in REPLAYS:
        print(__doc__, file=sys.stderr)
        return 2
    target = words.pop(0)
    keep = "--keep" in words
    options = {key: value for key, _, value in (word.removeprefix("-").partition("=") for word in words)}
    if not keep:
        try:
            import atheris
        except ImportError:
            pass
        else:
            return _libfuzzer(atheris, target, words)
    found = hunt(
        target, int(options.get("runs", 1_000_000)), int(options.get("seed", 1)),
        float(options.get("max_total_time", 1e9)), print,
    )  # fmt: skip
    if keep:
        write(target, found.items())
    return 0


def _libfuzzer(atheris: Any, target: str, words: list[str]) -> int:
    with atheris.instrument_imports(include=["tests.model", "clusterbroker.broker"]):
        REPLAYS[target](b"\0")
    with tempfile.TemporaryDirectory() as found:
        folders = [found, str(CORPUS / target)] if all(word.startswith("-") for word in words) else []
        atheris.Setup([sys.argv[0], *words, *folders], lambda data: REPLAYS[target](data) and None)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
