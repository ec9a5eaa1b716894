"""The sample configuration: every setting with its default, its unit and what is allowed, as a TOML file (pure).

`clusterbroker settings --toml` prints it, `deploy/clusterbroker.sample.toml` is what it printed last; a test holds one
against the other. Everything stands behind a `#`, so the file as it is changes nothing.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from pydantic import ByteSize
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from clusterbroker.broker.config import ENVIRONMENT_PREFIX, fields, sections
from clusterbroker.broker.foreman.templates import Template

WIDTH: Final = 118
UNITS: Final = {
    "_bytes": 'bytes: a number, or "64MiB"', "_bytes_max": 'bytes: a number, or "64MiB"', "_ms": "milliseconds",
    "_s": "seconds", "_percent": "percent", "_fraction": "a share, 0.5 is half",
}  # fmt: skip
HEAD: Final = (
    "All settings of clusterbroker, each with its default:",
    "    clusterbroker start --config /etc/clusterbroker/clusterbroker.toml",
    "What the command line says comes first, then the environment (the CLUSTERBROKER_ variable beside each setting), "
    "then this file. Take the # away from what you change. A word that is no setting, and a value that cannot be, keep "
    "the node from starting, with a line that says where it stands (of a variable that is no setting, and has no "
    "section's __ in it, the log has a warning). Secrets need not stand here: settings whose names "
    "end with _file name files, which nobody but the node's user and group may read.",
    "Made by `clusterbroker settings --toml`.",
)


POOLS: Final = (
    "How the workers of a pool are run, and whether it is declared: a section for each pool, with a name of yours. It "
    "stands in this file only, which nobody but the node's user, or root, may be able to write; neither variables nor "
    "the command line have a word for it: docs/worker-pools-drivers.md."
)
NO_VARIABLE: Final = "no variable"


def sample() -> str:
    """The whole file."""
    titles, known = sections(), fields()
    parts = [
        "\n#\n".join(map(_comment, HEAD)),
        *(_entry(name, field) for name, field in known.items() if "." not in name),
    ]
    for section, title in titles.items():
        parts.append(f"{_comment(title)}\n[{section}]")
        parts += [_entry(name, field) for name, field in known.items() if name.startswith(f"{section}.")]
    parts.append(f"{_comment(POOLS)}\n#[pools.NAME]")
    parts += [_pool_entry(name, field) for name, field in pool_fields().items()]
    return "\n\n".join(parts) + "\n"


def pool_fields() -> dict[str, FieldInfo]:
    """Settings of a section `[pools.NAME]`."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(Template))).body
    assert isinstance(body, ast.ClassDef), "it is one"
    docs = {
        field.target.id: doc.value.value
        for field, doc in pairwise(body.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
    }
    hints = get_type_hints(Template)
    return {
        one.name: FieldInfo(
            annotation=hints[one.name], default=getattr(Template(), one.name), description=str(docs[one.name])
        )
        for one in msgspec.structs.fields(Template)
    }


def _pool_entry(name: str, field: FieldInfo) -> str:
    """Lists are lists there, and bytes are numbers."""
    facts = ["bytes" if fact.startswith("bytes") else fact for fact in _allowed(name, field)]
    origins = {get_origin(kind) for kind in _kinds(field.annotation)}
    facts += [word for origin, word in ((tuple, "a list"), (dict, "a table")) if origin in origins]
    value = f"[{', '.join(map(_toml, field.default))}]" if isinstance(field.default, tuple) else _toml(field.default)
    described = _comment(" ".join((field.description or "").split()))
    return f"{described}\n{_comment('; '.join((*facts, NO_VARIABLE)))}\n#{name} = {value}"


def variable(name: str) -> str:
    """The environment's word for a setting."""
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "__")


def _entry(name: str, field: FieldInfo) -> str:
    last = name.rpartition(".")[2]
    facts = [*_allowed(last, field), variable(name)]
    value = _toml(field.default)
    if not has_default(field):
        facts.insert(0, "no default")
        value = '"..."'
    return f"{_comment(' '.join((field.description or '').split()))}\n{_comment('; '.join(facts))}\n#{last} = {value}"


def has_default(field: FieldInfo) -> bool:
    """Whether there is one that a file can say; TOML has no word for nothing."""
    return field.default is not None and field.default is not PydanticUndefined


def _allowed(last: str, field: FieldInfo) -> Iterator[str]:
    """Unit, kind and bounds, as far as there are any."""
    kinds = [kind for kind in _kinds(field.annotation) if kind is not type(None)]
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if words:
        yield "one of " + ", ".join(_toml(word) for word in words)
    if bool in kinds:
        yield "true or false"
    if Path in kinds:
        yield "a path"
    units = [unit for suffix, unit in UNITS.items() if last.endswith(suffix)]
    yield from units[:1]
    if bounds := _bounds(field):
        yield bounds


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _bounds(field: FieldInfo) -> str:
    found = {
        name: getattr(fact, name)
        for fact in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if getattr(fact, name, None) is not None
    }
    low, high = found.get("ge"), found.get("le")
    shown = _sized if isinstance(field.default, ByteSize) else lambda value: f"{value:,}"
    if low is not None and high is not None:
        return f"{shown(low)} to {shown(high)}"
    more = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
    return ", ".join(f"{more[name]} {shown(value)}" for name, value in found.items())


def _sized(count: int) -> str:
    """A number of bytes in the largest unit that says it exactly."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count and count % (1 << 10 * power) == 0:
            return f"{count >> 10 * power}{unit}"
    return str(count)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, ByteSize):
        sized = _sized(int(value))
        return sized if sized.isdecimal() else f'"{sized}"'
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, tuple):
        return _toml(",".join(map(str, value)))
    if isinstance(value, dict):
        return "{}"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _comment(text: str) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        lines += textwrap.wrap(line, WIDTH - 2, subsequent_indent="  " if line.startswith(" ") else "") or [""]
    return "\n".join(f"# {line}".rstrip() for line in lines)
