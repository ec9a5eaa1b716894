"""The sample configuration says what `broker.config` does: every setting, its default, its unit, what is allowed."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from clusterbroker.broker.cli.sample import has_default, sample, variable
from clusterbroker.broker.config import ENVIRONMENT_PREFIX, ConfigError, fields, load
from clusterbroker.broker.foreman.templates import Template, templates

SAMPLE = Path(__file__).resolve().parents[3] / "deploy" / "clusterbroker.sample.toml"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tuple(os.environ):
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)


def test_it_is_what_the_command_prints() -> None:
    assert SAMPLE.read_text() == sample(), "run: clusterbroker settings --toml > deploy/clusterbroker.sample.toml"


def test_as_it_is_it_changes_nothing() -> None:
    assert load(SAMPLE) == load()


def test_it_has_every_setting_with_its_default(tmp_path: Path) -> None:
    """Without its marks it sets each setting once, to what it is anyway."""
    without_default = {name for name, field in fields().items() if not has_default(field)}
    lines = [re.sub(r"^#(?=\w+ = |\[pools)", "", line) for line in SAMPLE.read_text().splitlines()]
    said = tomllib.loads("\n".join(lines))
    assert templates(said["pools"]) == {"NAME": Template()}
    assert said.pop("pools")["NAME"].keys() == set(Template.__struct_fields__)
    flat = {
        f"{name}.{inner}" if isinstance(value, dict) else name
        for name, value in said.items()
        for inner in (value if isinstance(value, dict) else [""])
    }
    assert flat == fields().keys()
    opened = tmp_path / "all.toml"
    opened.write_text("\n".join(line for line in lines if not line.endswith('= "..."')))
    assert len(without_default) == sum(line.endswith('= "..."') for line in lines)
    assert replace(load(opened).options(), pools_file=None) == load().options()


def test_each_has_its_words_and_what_is_allowed() -> None:
    blocks = SAMPLE.read_text().split("\n\n")
    for name, field in fields().items():
        [block] = [block for block in blocks if f"{variable(name)}\n#" in block]
        words = " ".join(line.removeprefix("# ") for line in block.splitlines())
        assert " ".join((field.description or "").split()) in words, name
        if name.endswith(("_s", "_ms")):
            assert "seconds" in words, name
        if "bytes" in name:
            assert "bytes: a number" in words, name


def test_every_bound_that_it_tells_holds(tmp_path: Path) -> None:
    """The lowest and the highest are taken, what is beyond is not: so the words are those of the checks."""
    opened = tmp_path / "one.toml"

    def taken(name: str, value: float) -> bool:
        section, _, last = name.rpartition(".")
        opened.write_text((f"[{section}]\n" if section else "") + f"{last} = {value}\n")
        try:
            load(opened)
        except ConfigError as error:
            return not str(error).startswith(f"{name} (")  # another one's fault is none of its
        return True

    sizes = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "": 1}
    number = r"([\d.,]+)((?:[KMGT]iB)?)"
    found = 0
    for name in fields():
        [facts] = re.findall(rf"^# (?:(.*); )?{variable(name)}$", SAMPLE.read_text(), re.MULTILINE)
        for low, low_unit, high, high_unit in re.findall(rf"{number} to {number}", facts):
            lowest, highest = (
                float(text.replace(",", "")) * sizes[unit] for text, unit in ((low, low_unit), (high, high_unit))
            )
            whole = [int(value) if value == int(value) else value for value in (lowest, highest)]
            assert [taken(name, value) for value in whole] == [True, True], name
            assert [taken(name, value) for value in (whole[0] - 1, whole[1] + 1)] == [False, False], name
            found += 1
    assert found > 8
