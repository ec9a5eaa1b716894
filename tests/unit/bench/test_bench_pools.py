"""Figures of worker pools, without a broker."""

from __future__ import annotations

from bench.pools import controller_steps, spread, table


def test_a_spread_is_of_sorted_times_in_ms() -> None:
    assert spread("x", [0.003, 0.001, 0.002]) == {"what": "x", "p50": 2.0, "p99": 3.0, "unit": "ms", "count": 3}


def test_a_table_has_a_line_for_each_figure() -> None:
    rows = [{"nodes": 3, **spread("call", [0.001])}, {"what": "groups", "p50": 1.5, "unit": "s", "count": 7}]
    head, call, groups = table(rows).splitlines()
    assert head.split() == ["p50", "p99", "unit", "of"]
    assert call.split() == ["3", "nodes:", "call", "1.0", "1.0", "ms", "1"]
    assert groups.split() == ["groups", "1.5", "s", "7"]


def test_the_controllers_steps_are_timed() -> None:
    assert [row["count"] for row in controller_steps()] == [18, 18]
