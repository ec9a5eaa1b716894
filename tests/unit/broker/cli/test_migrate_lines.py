"""What `migrate` tells without a terminal."""

from __future__ import annotations

from clusterbroker.broker.cli.migrate import LINE_S, QUIET_S, Lines


def test_a_line_tells_what_moved_and_how_fast() -> None:
    lines = Lines(5.0)
    assert lines.line(12_340, 5.0 + LINE_S) == "12,340 messages moved, 1,234/s"
    assert lines.line(12_350, 5.0 + 2 * LINE_S) == "12,350 messages moved, 1/s"


def test_that_nothing_comes_is_told_now_and_then() -> None:
    lines = Lines(0.0)
    told = [lines.line(0, at * LINE_S) for at in range(1, 14)]
    assert [at for at, line in enumerate(told, 1) if line] == [QUIET_S // LINE_S, 2 * QUIET_S // LINE_S]
    assert told[5] == "0 messages moved, none comes"
    assert lines.line(1, 14 * LINE_S) == "1 messages moved, 0/s"
    assert lines.line(1, 15 * LINE_S) == ""
