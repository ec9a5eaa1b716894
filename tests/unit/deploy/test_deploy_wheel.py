"""What is installed is one package, beside whatever a project calls its own files; a broker in a test needs little."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.wheels import built_wheel

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("fastapi", "uvicorn", "typer", "rich", "pydantic", "pydantic_settings", "structlog", "cryptography", "httpx")

pytestmark = [pytest.mark.long, pytest.mark.processes]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of installed packages."""
    site = tmp_path_factory.mktemp("site")
    words = ["-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, *words], check=True, timeout=120)
    return site


def test_our_packages_are_installed_and_nothing_beside_them(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    information = f"{'-'.join(wheel.stem.split('-')[:2])}.dist-info"
    assert top == {"clusterbroker", "clusterbroker_workers", "pyspark_clusterbroker.py", information}
    for needed in (
        "py.typed",
        "pytest_plugin.py",
        "broker/cli/entry.py",
        "journal/record.pxd",
        "cluster/wiring/map.py",
        "amqp10/client/shell.py",
    ):
        assert f"clusterbroker/{needed}" in names, needed


@pytest.fixture
def project(tmp_path: Path, installed: Path) -> dict[str, str]:
    """A project with files of our names, in which what only a server needs is not installed. The environment in
    which it runs."""
    for name in ("broker.py", "journal.py", "replication.py", "cluster/__init__.py", "pipeline/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine = True\n")
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({HEAVY}))\n")
    path = os.pathsep.join(map(str, (tmp_path, tmp_path / "missing", installed)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": ""}


TEST = """
import sys

import pika

THEIRS = [__import__(name) for name in ("broker", "cluster", "journal", "pipeline", "replication")]


def test_theirs_and_ours(clusterbroker):
    assert all(module.mine for module in THEIRS)
    with pika.BlockingConnection(pika.URLParameters(clusterbroker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"x")
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"
    assert clusterbroker.__class__.__module__ == "clusterbroker.broker.embedded"
    import clusterbroker as package
    assert SITE in package.__file__
"""


def test_a_project_with_files_of_our_names_runs_its_tests(
    tmp_path: Path, installed: Path, project: dict[str, str]
) -> None:
    (tmp_path / "test_theirs.py").write_text(TEST.replace("SITE", repr(str(installed))))
    words = ["-m", "pytest", "-q", "-p", "no:schemathesis", "-p", "no:cacheprovider", "test_theirs.py"]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=project, capture_output=True, text=True, check=False, timeout=120
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_command_says_what_brings_what_it_needs(tmp_path: Path, project: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clusterbroker", "status"], cwd=tmp_path, env=project, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("clusterbroker: the command needs ")
    assert done.stderr.endswith(": pip install 'clusterbroker[server]'\n")
    assert len(done.stderr.splitlines()) == 1


def test_a_management_api_in_a_test_says_what_brings_it(tmp_path: Path, project: dict[str, str]) -> None:
    code = "from clusterbroker import Broker; Broker(http=True)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=project, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr.endswith("needs FastAPI: pip install 'clusterbroker[server]'\n")


def test_a_client_needs_nothing_of_a_node(tmp_path: Path, project: dict[str, str]) -> None:
    code = "import sys, clusterbroker.amqp10.client; print(*(m for m in sys.modules if m.startswith('clusterbroker.')))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=project, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    packages = {".".join(name.split(".")[:3]) for name in done.stdout.split()}
    ours = {name for name in packages if not name.startswith("clusterbroker.amqp10")}
    assert ours == {"clusterbroker.broker", "clusterbroker.broker.wire"}
