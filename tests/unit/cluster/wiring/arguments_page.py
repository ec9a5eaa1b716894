"""The arguments of queues as Markdown, as they stand in docs/queue-arguments.md; run it to write them there:

python -m tests.unit.cluster.wiring.arguments_page
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import fields

from clusterbroker.cluster.wiring.queue_settings import RULES, QueueSettings, Rule

PAGE = Path(__file__).resolve().parents[4] / "docs" / "queue-arguments.md"
BEGIN, END = "<!-- arguments: begin -->", "<!-- arguments: end -->"
KINDS = {"all": "All queues", "queues": "All queues but streams", "streams": "Streams"}
POWERS = {2**power - 1: f"2^{power} - 1" for power in (31, 63)}
DEFAULTS = {field.name: field.default for field in fields(QueueSettings)}


def number(value: int) -> str:
    """Of thousands, or near a power of two."""
    return POWERS.get(value, f"{value:,}")


def values(schema: Mapping[str, Any]) -> str:
    """What is legal."""
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if "examples" in schema:
        return ", ".join(f"like `{word}`" for word in schema["examples"])
    if schema["type"] == "integer":
        return f"{number(schema['minimum'])} to {number(schema['maximum'])}"
    if schema["type"] == "boolean":
        return "`true`, `false`"
    return f"text, {schema['maxLength']} bytes at most" if "maxLength" in schema else "text"


def default(rule: Rule) -> str:
    """Of the setting; nothing where the description says it, or there is no limit."""
    value = DEFAULTS[rule.field] if rule.field is not None else None
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "" if value is None else number(value) if isinstance(value, int) else f"`{value}`"


def line(rule: Rule) -> str:
    """A row of the table."""
    key = "" if rule.key is None else f"`{rule.key}`" + (", minimum" if rule.merge == "minimum" else "")
    schema = rule.legal.schema
    cells = (f"`{rule.argument}`", key, values(schema), default(rule), schema.get("description", ""))
    return f"| {' | '.join(cells)} |".replace("  ", " ")


def tables() -> str:
    """All of them."""
    parts = []
    for kind, title in KINDS.items():
        lines = "\n".join(line(rule) for rule in RULES if rule.kinds == kind)
        parts.append(f"## {title}\n\n| argument | policy key | values | default | |\n|---|---|---|---|---|\n{lines}")
    return "\n\n".join(parts)


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
