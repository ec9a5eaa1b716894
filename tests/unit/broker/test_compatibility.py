"""The page of what RabbitMQ and LavinMQ have says what the code says."""

from __future__ import annotations

from tests.unit.broker import compatibility as page


def test_the_page_tells_what_is_here() -> None:
    told = page.PAGE.read_text(encoding="utf-8").partition(page.BEGIN)[2].partition(page.END)[0].strip()
    assert told == page.table(), "run: python -m tests.unit.broker.compatibility"


def test_an_argument_that_nobody_reads_is_not_here() -> None:
    assert page.consumers_know("x-priority")
    assert not page.consumers_know("x-nobody-reads-this")


def test_the_pages_of_plug_ins_exist() -> None:
    for _, where in page.PEERS["plug-ins"]["here"].values():
        assert (page.PAGE.parent / where).exists(), where
