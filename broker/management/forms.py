"""Bodies of requests as structs: a field says how its value is read, and what the OpenAPI document says of it.

A field that is missing without a default, or of another kind, is Refused (400) with a reason that names it. Texts of
numbers and truth values are taken as RabbitMQ takes them ("true", "5"), and fields that no struct has are passed over:
RabbitMQ's clients send more than it needs. The document describes the plain form. Whether names exist, patterns compile
and settings are known is the wiring's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple, Self

import msgspec
from msgspec import inspect as kinds

from .errors import bad_request
from .json_schema import INTEGER_MAX, Schema

BODY_BYTES_MAX: Final = 1 << 20
_MISSING: Final[Any] = object()

Said = Mapping[str, Any]
"""The fields of a body."""
Take = Callable[[str, Any], Any]
"""(name, value) -> what is kept of it. Refused (400) when it is none."""


class Form(msgspec.Struct):
    """An object in JSON. Fields are read in their order. Of `msgspec.Meta`: `ge` and `le` bound numbers; lengths and
    patterns are for the document; `extra` may have `take` (a Take) and `also` (another name of the field)."""

    MORE: ClassVar[Schema] = {}
    """What the schema says beyond the fields."""

    @classmethod
    def of(cls, said: Said) -> Self:
        """Refused (400) by the first field that cannot be read."""
        found: dict[str, Any] = {}
        for field in _fields(cls):
            value = said.get(field.said, _MISSING)
            if value is _MISSING and field.also:
                value = said.get(field.also, _MISSING)
            if value is not _MISSING and not (value is None and field.nullable):
                found[field.name] = field.take(field.said, value)
            elif field.required:
                raise bad_request(f"[{{key_missing,{field.said}}}]")
        return cls(**found)

    @classmethod
    def schema(cls) -> Schema:
        """As JSON schema, whole in itself."""
        (told,), parts = msgspec.json.schema_components((cls,), ref_template="{name}")
        return {**_inlined(told, parts), **cls.MORE}


class _Field(NamedTuple):
    name: str
    said: str
    also: str
    take: Take
    required: bool
    nullable: bool


@cache
def _fields(form: type[Form]) -> tuple[_Field, ...]:
    return tuple(_described(form))


def _described(form: type[Form]) -> Iterator[_Field]:
    told = kinds.type_info(form)
    assert isinstance(told, kinds.StructType), "a form is a struct"
    for field in told.fields:
        extra = (field.type.extra or {}) if isinstance(field.type, kinds.Metadata) else {}
        nullable = isinstance(field.type, kinds.UnionType) and any(
            isinstance(one, kinds.NoneType) for one in field.type.types
        )
        yield _Field(field.name, field.encode_name, extra.get("also", ""), _take(field.type), field.required, nullable)


def _take(kind: kinds.Type) -> Take:
    match kind:
        case kinds.Metadata(type=inner, extra=extra):
            take: Take = (extra or {}).get("take") or _take(inner)
            return take
        case kinds.UnionType(types=(inner, kinds.NoneType())):
            return _take(inner)
        case kinds.StrType():
            return text
        case kinds.BoolType():
            return flag
        case kinds.IntType(ge=least, le=most):
            return lambda name, value: number(name, value, least, most)
        case kinds.DictType():
            return table
        case kinds.StructType(cls=inner_form):
            assert issubclass(inner_form, Form), "an object within an object is a form, too"
            return lambda name, value: inner_form.of(table(name, value))
        case _:
            return lambda _name, value: value


def _inlined(schema: Any, parts: Mapping[str, Any]) -> Any:
    match schema:
        case {"$ref": name}:
            return _inlined(parts[name], parts)
        case {"properties": _, "title": _}:
            plain = {key: value for key, value in schema.items() if key != "title" and (key, value) != ("required", [])}
            plain["description"] = " ".join(schema["description"].split())
            return {key: _inlined(value, parts) for key, value in plain.items()}
        case {"type": "integer"}:
            return {"minimum": -INTEGER_MAX, "maximum": INTEGER_MAX, **schema}
        case dict():
            return {key: _inlined(value, parts) for key, value in schema.items()}
        case list():
            return [_inlined(value, parts) for value in schema]
        case _:
            return schema


# -- kinds of values ------------------------------------------------------------------------------------------


def text(name: str, value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise bad_request(f"'{name}' should be a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise bad_request(f"'{name}' is not valid Unicode") from None
    return value


def flag(_name: str, value: Any) -> bool:
    """A truth value."""
    if isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        raise bad_request(["not_boolean", value])
    return value


def number(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """A whole number of at most 63 bits, within bounds."""
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) < 19:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise bad_request(f"{name} should be a number, actually was {shown(value)}")
    if least is not None and most is not None and not least <= value <= most:
        raise bad_request(f"{name} is from {least} to {most}")
    if least is not None and value < least:
        raise bad_request(f"{name} is not negative")
    return value


def table(name: str, value: Any) -> dict[str, Any]:
    """An object."""
    if value == [] or value == "":
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"'{name}' should be an object")
    return value


def shown(value: Any) -> str:
    """A wrong value, for its sender."""
    return f"'{value}'"[:80] if isinstance(value, str) else type(value).__name__


# -- octets ---------------------------------------------------------------------------------------------------


def parsed(body: bytes) -> dict[str, Any]:
    """The object in a body; nothing at all is an empty one."""
    if not body.strip():
        return {}
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise bad_request("not_json")
    return value


def picked(body: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    """These fields of the object in a long body: texts of any length, and other values of at most BODY_BYTES_MAX. What
    else there is takes no memory."""
    shape = msgspec.defstruct("Picked", [(name, msgspec.Raw, msgspec.Raw(b"")) for name in names])
    try:
        found = msgspec.json.decode(body, type=shape)
        fields: dict[str, Any] = {}
        for name in names:
            octets = memoryview(getattr(found, name))
            if len(octets) > BODY_BYTES_MAX and bytes(octets[:1]) != b'"':
                raise bad_request(f"'{name}' has {BODY_BYTES_MAX} bytes at most")
            if octets:
                fields[name] = msgspec.json.decode(octets)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise bad_request("not_json") from None
    return fields
