"""The declared tables are the specification: one test, every class, method, field, property and reply code."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from clusterbroker.broker.wire.amqp091 import properties
from clusterbroker.broker.wire.amqp091.errors import HARD_CODES, SOFT_CODES, ReplyCode
from clusterbroker.broker.wire.amqp091.methods import METHODS

SPECIFICATION = Path(__file__).parents[4] / "spec" / "amqp0-9-1.stripped.extended.xml"

RENAMED = {"no-wait": "nowait", "global": "global_qos", "reserved": "cluster_id"}
RESERVED = {
    ("connection.open", "reserved-1"): "capabilities",
    ("connection.open", "reserved-2"): "insist",
    ("connection.open-ok", "reserved-1"): "known_hosts",
    ("channel.open", "reserved-1"): "out_of_band",
    ("channel.open-ok", "reserved-1"): "channel_id",
    ("basic.get-empty", "reserved-1"): "cluster_id",
}
"""Every other ``reserved-1`` is the ticket of 0-8."""

BITS = ("exclusive", "passive", "active", "write", "read")
ACCESS = {
    "access.request": (30, 10, True, False, [("realm", "shortstr"), *((name, "bit") for name in BITS)]),
    "access.request-ok": (30, 11, True, False, [("ticket", "short")]),
}
"""The class that 0-9-1 dropped, from the specification of 0-8."""


def our_name(method: str, field: str) -> str:
    if field == "reserved-1":
        return RESERVED.get((method, field), "ticket")
    return RESERVED.get((method, field)) or RENAMED.get(field) or field.replace("-", "_")


def test_the_declared_tables_are_the_specification() -> None:
    root = ElementTree.parse(SPECIFICATION).getroot()
    domains = {domain.get("name"): domain.get("type") for domain in root.iter("domain")}

    def fields(owner: ElementTree.Element, method: str) -> list[Any]:
        return [
            (our_name(method, field.get("name", "")), field.get("type") or domains[field.get("domain")])
            for field in owner.findall("field")
        ]

    specified: dict[str, Any] = dict(ACCESS)
    for amqp_class in root.findall("class"):
        for method in amqp_class.findall("method"):
            name = f"{amqp_class.get('name')}.{method.get('name')}"
            specified[name] = (
                int(amqp_class.get("index", "")),
                int(method.get("index", "")),
                method.get("synchronous") == "1",
                method.get("content") == "1",
                fields(method, name),
            )
    declared = {
        method.NAME: (*ids, method.SYNCHRONOUS, method.HAS_CONTENT, list(method.LAYOUT.fields))
        for ids, method in METHODS.items()
    }
    assert declared == specified
    assert len(declared) == 66

    basic = next(amqp_class for amqp_class in root.findall("class") if amqp_class.get("name") == "basic")
    assert int(basic.get("index", "")) == properties.CLASS_ID
    assert list(properties.PROPERTIES) == fields(basic, "basic")

    codes = [constant for constant in root.findall("constant") if int(constant.get("value", "")) >= 300]
    written = {int(code.get("value", "")): (code.get("name"), code.get("class")) for code in codes}
    # frame-min-size is a constant, too, and no reply code
    del written[4096]
    weights = dict.fromkeys(SOFT_CODES, "soft-error") | dict.fromkeys(HARD_CODES, "hard-error")
    assert written == {
        int(code): (ReplyCode(code).name.lower().replace("_", "-"), weight) for code, weight in weights.items()
    }
