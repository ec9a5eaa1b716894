"""The page of a queue's arguments says what the rules say."""

from __future__ import annotations

from clusterbroker.cluster.wiring.queue_settings import RULES
from tests.unit.cluster.wiring import arguments_page as page


def test_the_page_tells_all_arguments() -> None:
    told = page.PAGE.read_text(encoding="utf-8").partition(page.BEGIN)[2].partition(page.END)[0].strip()
    assert told == page.tables(), "run: python -m tests.unit.cluster.wiring.arguments_page"


def test_every_rule_has_a_row_that_says_what_it_is() -> None:
    rows = page.tables()
    for rule in RULES:
        assert f"| `{rule.argument}` |" in rows
        assert rule.legal.schema.get("description"), f"{rule.argument}: give its values a description, Legal.about"
