"""Pages, or parts of them, that are made from the code and from measurements are those that it makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from bench import figures_page
from clusterbroker.broker.cli.sample import pool_fields
from clusterbroker.broker.config import fields
from tests.pages import configuration

MADE: list[tuple[ModuleType, Callable[[], str]]] = [
    (configuration, configuration.reference),
    (figures_page, figures_page.page),
]


@pytest.mark.parametrize("module, made", MADE, ids=lambda value: getattr(value, "__name__", ""))
def test_the_page_is_current(module: ModuleType, made: Callable[[], str]) -> None:
    """`python -m MODULE` writes it."""
    page: Path = module.PAGE
    _, _, rest = page.read_text(encoding="utf-8").partition(module.BEGIN)
    there, _, _ = rest.partition(module.END)
    assert there.strip() == made(), f"python -m {module.__name__}"


def test_every_setting_is_on_the_page() -> None:
    made = [(section, row.split("`")[1]) for section, _, row in configuration.rows()]
    known = [*fields(), *(f"pools.NAME.{name}" for name in pool_fields())]
    assert sorted(f"{section}.{name}".lstrip(".") for section, name in made) == sorted(known)
