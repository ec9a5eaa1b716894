"""A data directory of another user: its owner is named, and what to do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterbroker.broker.cli.exit_codes import NOT_ALLOWED
from clusterbroker.broker.cli.main import app

NOBODY = 65534


@pytest.fixture
def directory() -> Iterator[Path]:
    """Of root, beside those of pytest, which nobody may enter."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user for a moment")
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        (inner := Path(made) / "data").mkdir(mode=0o700)
        yield inner


@pytest.mark.parametrize("words", [["status"], ["queues"], ["queues", "list"], ["users", "list"]], ids=" ".join)
def test_its_owner_is_named(directory: Path, words: list[str]) -> None:
    given = [*words, "--data-dir", str(directory)]
    CliRunner().invoke(app, given)  # what it imports, the other user may not read
    os.seteuid(NOBODY)
    try:
        done = CliRunner().invoke(app, given)
    finally:
        os.seteuid(0)
    said = f"clusterbroker: {directory} belongs to another user: sudo -u root clusterbroker"
    assert (done.exit_code, done.stderr[: len(said)]) == (NOT_ALLOWED, said)
