"""Header values through JSON and back: what an export says of them, an import understands."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.cli.importing import amqp
from clusterbroker.broker.cli.readable import jsonable
from clusterbroker.journal.values import Timestamp

names = st.text(st.characters(codec="utf-8"), max_size=8)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | names
    | st.binary(max_size=8)
    | st.integers(0, 2**64 - 1).map(Timestamp)
    | st.decimals(-(2**31), 2**31 - 1, places=2)
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(names, values, max_size=4))
def test_a_table_comes_back(table: dict[str, Any]) -> None:
    back = amqp({"outer": json.loads(json.dumps(jsonable(table)))})["outer"] if table else {}
    assert back == table
    assert kinds(back) == kinds(table)


def kinds(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: kinds(inner) for name, inner in value.items()}
    return [kinds(inner) for inner in value] if isinstance(value, list) else type(value)


def test_numbers_that_json_cannot_say() -> None:
    assert [amqp(jsonable(value)) for value in (float("inf"), Decimal("1.25"))] == [float("inf"), Decimal("1.25")]
    assert str(amqp(jsonable(float("nan")))) == "nan"
