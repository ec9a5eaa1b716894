"""Bodies of requests: JSON objects read field by field, and the commands that they stand for.

A field is asked for by its kind. One that is missing without a default, or of another kind, is Refused (400) with a
reason that says which; texts of numbers and truth values are taken as RabbitMQ takes them ("true", "5"). What is not
asked for is passed over, as RabbitMQ does: its clients send more than it needs.

Whether names exist, patterns compile and settings are known is the wiring's to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from clusterbroker.cluster.passwords import PASSWORD_BYTES_MAX, SCRYPT, SHA256, SHA512
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import VHOST_LIMITS, ApplyTo, UserLimits
from clusterbroker.cluster.wiring.queue_settings import storable_lives

from .errors import bad_request
from .naming import check_arguments

BODY_BYTES_MAX: Final = 1 << 20
DEFINITIONS_BYTES_MAX: Final = 64 << 20
TAGS_MAX: Final = 50
APPLY_TO: Final = get_args(ApplyTo)
_MISSING: Final[Any] = object()
_HASHES: Final = (SHA256, SHA512, SCRYPT)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")


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


class Body:
    """One object, read field by field."""

    __slots__ = ("_fields", "at_ms")

    def __init__(self, fields: Mapping[str, Any], at_ms: int) -> None:
        """`at_ms`: what its commands say about when."""
        self._fields = fields
        self.at_ms = at_ms

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def value(self, name: str, default: Any = _MISSING) -> Any:
        """Whatever it is."""
        value = self._fields.get(name, default)
        if value is _MISSING:
            raise bad_request(f"[{{key_missing,{name}}}]")
        return value

    def text(self, name: str, default: str = _MISSING) -> str:
        """A text."""
        value = self.value(name, default)
        if not isinstance(value, str):
            raise bad_request(f"'{name}' should be a text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise bad_request(f"'{name}' is not valid Unicode") from None
        return value

    def flag(self, name: str, default: bool = _MISSING) -> bool:
        """A truth value."""
        value = self.value(name, default)
        if isinstance(value, str) and value in ("true", "false"):
            return value == "true"
        if not isinstance(value, bool):
            raise bad_request(["not_boolean", value])
        return value

    def number(self, name: str, default: int = _MISSING) -> int:
        """A whole number of at most 63 bits."""
        value = self.value(name, default)
        if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) < 19:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
            raise bad_request(f"{name} should be a number, actually was {_shown(value)}")
        return value

    def table(self, name: str, default: dict[str, Any] = _MISSING) -> dict[str, Any]:
        """An object."""
        value = self.value(name, default)
        if value == [] or value == "":
            return {}
        if not isinstance(value, dict):
            raise bad_request(f"'{name}' should be an object")
        return value

    def arguments(self) -> dict[str, Any]:
        """What a declaration says beyond AMQP's fields; nothing by default."""
        arguments = storable_lives(self.table("arguments", {}))
        check_arguments(arguments)
        return arguments

    def tags(self, name: str = "tags", default: str = _MISSING) -> tuple[str, ...]:
        """Texts, or one text with commas."""
        value = self.value(name, default)
        if isinstance(value, str):
            value = [tag.strip() for tag in value.split(",")]
        if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
            raise bad_request(f"'{name}' should be a list of texts")
        found = tuple(dict.fromkeys(tag for tag in value if tag))
        if len(found) > TAGS_MAX:
            raise bad_request(f"more than {TAGS_MAX} tags")
        return found

    def vhost_command(self, name: str) -> c.AddVhost:
        """Make or change a vhost."""
        metadata = Body(self.table("metadata", {}), self.at_ms)
        kind = self.value("default_queue_type", metadata.value("default_queue_type", None))
        return c.AddVhost(
            at_ms=self.at_ms,
            name=name,
            description=self.text("description", metadata.text("description", "")),
            tags=self.tags("tags", ",".join(metadata.tags("tags", ""))),
            default_queue_type=None if kind in (None, "", "undefined") else str(kind),
            tracing=self.flag("tracing") if "tracing" in self else None,
        )

    def permission_command(self, vhost: str, user: str) -> c.SetPermission:
        """What a user may do in a vhost."""
        return c.SetPermission(
            at_ms=self.at_ms,
            user=user,
            vhost=vhost,
            configure=self.text("configure"),
            write=self.text("write"),
            read=self.text("read"),
        )

    def topic_permission_command(self, vhost: str, user: str) -> c.SetTopicPermission:
        """Which routing keys a user may use on a topic exchange."""
        return c.SetTopicPermission(
            at_ms=self.at_ms,
            user=user,
            vhost=vhost,
            exchange=self.text("exchange"),
            write=self.text("write"),
            read=self.text("read"),
        )


def _shown(value: Any) -> str:
    return f"'{value}'"[:80] if isinstance(value, str) else type(value).__name__


def user_command(name: str, body: Body, there: bool = False) -> tuple[c.PutUser, str | None]:
    """Make or replace a user; with a password, that is still to be hashed, or a hash that RabbitMQ or we made.

    Of a user that is there the body may say a part: the tags alone, or the password alone. The rest stays as it is
    then, and so do limits of which the body says nothing.
    """
    password: str | None = None
    stored, algorithm = "", SCRYPT
    only: tuple[str, ...] = ()
    secret = ("password" in body and body.value("password") is not None) or "password_hash" in body
    if there and "tags" not in body and secret:
        only = ("password_hash", "hash_algorithm")
    elif there and "tags" in body and not secret:
        only = ("tags",)
    elif "tags" not in body:
        raise bad_request("tags_not_present")
    if "password" in body and body.value("password") is not None:
        password = body.text("password")
        if not password:
            raise bad_request("the password is empty: give an empty password_hash for a user without a password")
        if len(password.encode()) > PASSWORD_BYTES_MAX:
            raise bad_request(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
    elif "password_hash" in body:
        stored = body.text("password_hash")
        algorithm = body.text("hashing_algorithm", SHA256)
        if algorithm not in _HASHES:
            raise bad_request(f"hashing_algorithm is none of {', '.join(_HASHES)}")
        if algorithm != SCRYPT and not _BASE64.fullmatch(stored):
            raise bad_request("password_hash is not base64")
    elif not only:
        raise bad_request("password or password_hash is missing")
    limits = None if there else UserLimits()
    if "limits" in body:
        if only:
            only = (*only, "limits")
        limits = UserLimits()
        for limit, value in body.table("limits").items():
            limits = user_limits_with(limits, limit, value)
    command = c.PutUser(
        at_ms=body.at_ms,
        name=name,
        password_hash=stored,
        hash_algorithm=algorithm,
        tags=() if "tags" not in body else body.tags(),
        limits=limits,
        only=only,
    )
    return command, password


_USER_LIMITS: Final = {"max-connections": "connections_max", "max-channels": "channels_max"}


def _limit(names: Mapping[str, str], of: str, name: str, value: Any) -> str:
    """The field of a limit; refused if there is none of this name, or it cannot have this value."""
    if name not in names:
        raise bad_request(f"Validation failed\n\nUnrecognised terms [{name}] in {of}\n")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63):
        raise bad_request(f"Validation failed\n\n{name} should be a number, actually was {_shown(value)}\n")
    return names[name]


def user_limits_with(limits: UserLimits, name: str, value: Any) -> UserLimits:
    """A user's limits with one of them changed; None takes it off."""
    return msgspec.structs.replace(limits, **{_limit(_USER_LIMITS, "user-limits", name, value): value})


def user_limit_command(user: str, name: str, value: int | None, at_ms: int) -> c.SetUserLimits:
    """One limit of a user; None takes it off."""
    field = _limit(_USER_LIMITS, "user-limits", name, value)
    return c.SetUserLimits(at_ms=at_ms, name=user, limits=UserLimits(**{field: value}), only=(field,))


def limits_command(vhost: str, limits: Mapping[str, Any], at_ms: int) -> c.SetVhostLimits:
    """All limits of a vhost."""
    chosen: dict[str, Any] = {}
    for name, value in limits.items():
        field = _limit(VHOST_LIMITS, "limits", name, value)
        if value is None:
            raise bad_request(f"Validation failed\n\n{name} should be a number, actually was {_shown(value)}\n")
        chosen[field] = value
    return c.SetVhostLimits(at_ms=at_ms, vhost=vhost, **chosen)


def limit_command(vhost: str, name: str, value: int | None, at_ms: int) -> c.SetVhostLimits:
    """One limit of a vhost; None takes it off."""
    field = _limit(VHOST_LIMITS, "limits", name, value)
    fields: dict[str, Any] = {field: value}
    return c.SetVhostLimits(at_ms=at_ms, vhost=vhost, only=(field,), **fields)


def policy_command(vhost: str, name: str, body: Body, *, operator: bool = False) -> c.PutPolicy | c.PutOperatorPolicy:
    """Make or replace a policy."""
    apply_to = body.text("apply-to", body.text("apply_to", "all"))
    if apply_to not in APPLY_TO:
        raise bad_request(f"Validation failed\n\napply-to '{apply_to[:80]}' unrecognised\n")
    pattern, priority = body.text("pattern"), body.number("priority", 0)
    definition = storable_lives(body.table("definition"))
    if operator:
        return c.PutOperatorPolicy(
            at_ms=body.at_ms,
            vhost=vhost,
            name=name,
            pattern=pattern,
            definition=definition,
            apply_to=apply_to,  # type: ignore[arg-type]
            priority=priority,
        )
    return c.PutPolicy(
        at_ms=body.at_ms,
        vhost=vhost,
        name=name,
        pattern=pattern,
        definition=definition,
        apply_to=apply_to,  # type: ignore[arg-type]
        priority=priority,
    )


def parameter_command(vhost: str, component: str, name: str, body: Body) -> c.PutParameter:
    """Make or replace a parameter."""
    return c.PutParameter(at_ms=body.at_ms, vhost=vhost, component=component, name=name, value=body.value("value"))
