"""Alerts: identity, one log line for each begin and end, a bound."""

from __future__ import annotations

from clusterbroker.broker.node.alerts import ALERTS_MAX, Alerts
from clusterbroker.broker.node.log import Silence


class Lines(Silence):
    def __init__(self) -> None:
        self.said: list[tuple[bool, str, str, str]] = []

    def alert(self, raised: bool, kind: str, subject: str, text: str) -> None:
        self.said.append((raised, kind, subject, text))


def test_an_alert_is_told_once_and_keeps_its_time() -> None:
    lines, at = Lines(), [5]
    alerts = Alerts(lines, lambda: at[0])
    alerts.set("queue.paused_by_error", "orders", "set aside at 7")
    at[0] = 9
    alerts.set("queue.paused_by_error", "orders", "set aside at 8")
    assert [(one.text, one.since_ms) for one in alerts] == [("set aside at 8", 5)]
    assert alerts.holds("queue.paused_by_error", "orders")
    alerts.clear("queue.paused_by_error", "orders")
    alerts.clear("queue.paused_by_error", "orders")
    assert [raised for raised, *_ in lines.said] == [True, False]
    assert not len(alerts)


def test_more_than_are_kept_are_counted() -> None:
    alerts = Alerts(Silence(), lambda: 0)
    for number in range(ALERTS_MAX + 3):
        alerts.set("a.b", str(number), "")
    assert len(alerts) == ALERTS_MAX + 3
    assert len(list(alerts)) == ALERTS_MAX
    alerts.clear("a.b", "0")
    assert len(alerts) == ALERTS_MAX - 1
