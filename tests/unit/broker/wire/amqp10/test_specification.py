"""The declared composites, the encodings of values and the error conditions are the standard's (`tests/spec`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from clusterbroker.broker.wire.amqp10 import errors, types
from clusterbroker.broker.wire.amqp10.performatives import COMPOSITES
from clusterbroker.broker.wire.numbers import Float32, Int8, Int16, Int32, UInt8, UInt16, UInt32, UInt64

TABLE = Path(__file__).parents[4] / "spec" / "amqp1.0-types.txt"
ASSUMED = {("discharge", "txn-id"), ("declared", "txn-id"), ("transactional-state", "txn-id")}
"""Of any type in the standard; its only type there is transaction-id, a binary (4.5.6)."""
ANY_ERROR = {"error"}
"""A composite as a field is of any type for the decoder, which knows it by its descriptor."""
UNSAID = {("modified", "delivery-failed"), ("modified", "undeliverable-here"), ("discharge", "fail")}
"""Booleans without a default, whose absence the prose says to mean false (3.4.5, 4.5.3)."""
NOT_ANSWERED = {"redirect"}
"""Conditions that nothing here leads to; a client may say them."""


class Specified(NamedTuple):
    primitives: dict[int, tuple[str, str, int]]
    restricted: dict[str, str]
    composites: dict[str, tuple[int, str, list[tuple[str, str, bool, bool, str | None]]]]
    conditions: dict[str, str]


def specified() -> Specified:
    found = Specified({}, {}, {}, {})
    for line in TABLE.read_text().splitlines():
        match line.split():
            case ["primitive", name, *encodings]:
                for code, category, width in (one.split(":") for one in encodings):
                    found.primitives[int(code, 16)] = (name, category, int(width))
            case ["restricted", name, "of", source]:
                found.restricted[name] = source
            case ["composite", name, code, symbol]:
                fields: list[tuple[str, str, bool, bool, str | None]] = []
                found.composites[name] = (int(code, 16), symbol, fields)
            case ["field", name, kind, *rest]:
                default = next((one.removeprefix("default=") for one in rest if one.startswith("default=")), None)
                fields.append((name, kind, "mandatory" in rest, "multiple" in rest, default))
            case ["choice", name, "of", _, "=", value]:
                found.conditions[value] = name
    return found


SPECIFIED = specified()


def _kind(kind: str, multiple: bool) -> str:
    """Our name of a field's type: the source of what the standard restricts, but for maps of symbols."""
    while kind in SPECIFIED.restricted and kind not in ("fields", "filter-set"):
        kind = SPECIFIED.restricted[kind]
    if kind in ANY_ERROR:
        return "*"
    return {"filter-set": "fields"}.get(kind, "symbols" if multiple else kind)


def _default(text: str | None, kind: str) -> Any:
    if text is None:
        return () if kind == "symbols" else None
    return {"false": False, "true": True}.get(text, int(text) if text.isdigit() else text)


def test_the_composites_are_the_standards() -> None:
    ours = {composite.NAME: composite for composite in COMPOSITES.values()}
    assert set(ours) == set(SPECIFIED.composites), "no type is missing, none is of our making"
    for name, (code, symbol, fields) in SPECIFIED.composites.items():
        assert (code, symbol) == (ours[name].CODE, ours[name].SYMBOL)
        expected = []
        for field, declared, mandatory, multiple, default in fields:
            kind = "binary" if (name, field) in ASSUMED else _kind(declared, multiple)
            value = False if (name, field) in UNSAID else _default(default, kind)
            if mandatory and kind == "symbols":
                value = None
            expected.append((field.replace("-", "_"), kind, mandatory, value))
        assert list(ours[name].FIELDS) == expected, name


_PYTHON = {
    "null": type(None), "boolean": bool, "ubyte": UInt8, "ushort": UInt16, "uint": UInt32,
    "ulong": UInt64, "byte": Int8, "short": Int16, "int": Int32, "long": int,
    "float": Float32, "double": float, "decimal32": types.Decimal, "decimal64": types.Decimal,
    "decimal128": types.Decimal, "char": types.Char, "timestamp": types.Milliseconds, "uuid": types.Uuid,
    "binary": bytes, "string": str, "symbol": types.Symbol, "list": list, "map": dict, "array": types.Array,
}  # fmt: skip


@pytest.mark.parametrize("code", range(1, 256))
def test_every_format_code_is_read_as_the_standard_says(code: int) -> None:
    if code not in SPECIFIED.primitives:
        with pytest.raises(types.DecodeError, match="unknown format code"):
            types.decode_all(bytes((code,)) + b"\0" * 64)
        return
    name, category, width = SPECIFIED.primitives[code]
    if category == "fixed":
        data = b"\0" * width
    else:
        inner = {"variable": b"", "compound": bytes(width), "array": bytes(width) + b"\x40"}[category]
        data = len(inner).to_bytes(width, "big") + inner
    value = types.decode_all(bytes((code,)) + data)
    assert type(value) is _PYTHON[name]
    assert SPECIFIED.primitives[types.encode(value)[0]][0] == name, "a value keeps its type when written again"


def test_the_conditions_are_the_standards() -> None:
    ours = {value for name, value in vars(errors).items() if name.isupper() and str(value).startswith("amqp:")}
    known = {value for value, name in SPECIFIED.conditions.items() if name not in NOT_ANSWERED}
    assert ours - {errors.CONNECTION_REDIRECT} == known
    assert errors.CONNECTION_REDIRECT in SPECIFIED.conditions
