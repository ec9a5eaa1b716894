"""Workers of an embedded broker's pools: real processes, and none of them left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker import Broker
from clusterbroker.broker import embedded_pools
from clusterbroker.broker.embedded_pools import PoolGiven, PoolPlan, planned, reference, written
from clusterbroker.broker.foreman.templates import templates
from clusterbroker_workers import Fail, Pool, Request, Unserved, Worker

PATIENCE_S = 60.0


class Pids(Worker):
    """Answers its own process, or what it is asked for."""

    def load(self, key: str) -> None:
        if key == "broken":
            raise ValueError("nothing to load")

    def handle(self, request: Request) -> str:
        match request.body.split(b" "):
            case [b"begins", path]:
                Path(path.decode()).touch()
                time.sleep(1)
            case [b"environment", name]:
                return os.environ.get(name.decode(), "")
            case [b"directory"]:
                return os.getcwd()
            case [b"print", text]:
                print(text.decode(), flush=True)
            case [b"fail"]:
                raise Fail("as asked")
        return str(os.getpid())


class Outer:
    """Has a class that no other process finds."""

    class Inner(Worker):
        """Not at the top of its module."""


class Lazy:
    """No worker."""


def until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Neither over nor a zombie that somebody still has to wait for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def temporary() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("clusterbroker-workers-*"))


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))


def called(broker: Broker, body: bytes = b"", key: str = "42") -> str:
    with Pool(broker.url, "core") as pool:
        return pool.call(key, body, timeout_s=PATIENCE_S).body.decode()


@pytest.mark.processes
@pytest.mark.parametrize("fails", [False, True])
def test_a_class_serves_and_leaves_nothing(fails: bool) -> None:
    class Wrong(Exception):
        pass

    pids: list[int] = []
    try:
        with Broker(pools={"core": Pids}) as broker:
            pids = [int(called(broker, key=key)) for key in ("42", "43")]
            assert all(map(runs, pids))
            assert temporary()
            if fails:
                raise Wrong
    except Wrong:
        assert fails
    assert len(set(pids)) == 2, "a worker for each key"
    assert not any(map(runs, pids))
    assert not temporary()


@pytest.mark.processes
async def test_on_the_running_loop(tmp_path: Path) -> None:
    settings = {"worker": f"{__name__}:Pids", "max": 1, "environment": {"MODEL": "small"}, "directory": tmp_path}
    async with Broker(pools={"core": settings}) as broker, Pool(broker.url, "core") as pool:
        answers = [
            (await pool.call_async("42", body, timeout_s=PATIENCE_S)).body.decode()
            for body in (b"environment MODEL", b"environment HOME", b"directory", b"")
        ]
    assert answers[:3] == ["small", os.environ.get("HOME", ""), str(tmp_path)]
    assert not await asyncio.to_thread(runs, int(answers[3]))


OF_PIKA = """
import os, sys, pika
channel = pika.BlockingConnection(pika.URLParameters(os.environ["WORKER_AMQP_URI"])).channel()
for method, properties, body in channel.consume(os.environ["WORKER_REQUESTS_QUEUE"]):
    about = pika.BasicProperties(correlation_id=properties.correlation_id)
    channel.basic_publish("", properties.reply_to, f"{sys.argv[1]} {os.getpid()}".encode(), about)
    channel.basic_ack(method.delivery_tag)
"""


@pytest.mark.processes
def test_a_command_serves(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(OF_PIKA)
    command = [sys.executable, tmp_path / "worker.py", "{key}"]
    with Broker(pools={"core": command}) as broker:
        key, pid = called(broker).split()
    assert key == "42"
    assert not runs(int(pid))


@pytest.mark.processes
def test_a_worker_that_does_not_end_is_killed() -> None:
    command = [
        sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + OF_PIKA, "stays",
    ]  # fmt: skip
    with Broker(pools={"core": command}) as broker:
        pid = int(called(broker).split()[1])
        begun_s = time.monotonic()
    assert embedded_pools.GRACE_S <= time.monotonic() - begun_s < embedded_pools.END_S
    assert not runs(pid)


@pytest.mark.processes
def test_what_is_held_is_answered_before_the_end(tmp_path: Path) -> None:
    broker = Broker(pools={"core": {"worker": Pids, "grace_s": 20}}).start()
    with Pool(broker.url, "core") as pool, ThreadPoolExecutor(1) as beside:
        pid = int(pool.call("42", b"", timeout_s=PATIENCE_S).body)
        begun = tmp_path / "begun"
        held = beside.submit(pool.call, "42", b"begins " + bytes(begun), timeout_s=PATIENCE_S)
        until(begun.exists, "the worker holds the request")
        broker.stop()
        assert int(held.result().body) == pid
    assert not runs(pid)


@pytest.mark.processes
def test_a_start_that_fails_is_told_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    with Broker(pools={"core": Pids}) as broker, pytest.raises(Unserved, match="start_failed"):
        called(broker, key="broken")
    assert "nothing to load" in capfd.readouterr().err, "a worker writes where its test does"


@pytest.mark.processes
def test_a_kept_pool_starts_workers_again(tmp_path: Path) -> None:
    pids = set()
    for _ in range(2):
        with Broker(tmp_path / "data", pools={"core": Pids}) as broker:
            pids.add(int(called(broker)))
        assert not any(map(runs, pids))
    assert len(pids) == 2
    assert not temporary()


@pytest.mark.processes
def test_workers_of_a_foreman_that_was_killed_end(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(pools={"core": Pids}).start()
    pid = int(called(broker))
    foreman = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    monkeypatch.setattr("clusterbroker.broker.server.companion.FIRST_PAUSE_S", 3600.0)
    broker._workers._foreman._pause_s = 3600.0  # type: ignore[union-attr]  # no other one comes by itself
    os.kill(foreman, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{foreman}").exists(), "the broker has waited for its foreman")
    assert runs(pid)
    broker.stop()
    assert not runs(pid)
    assert not temporary()


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_workers_end_though_a_process_was_forked_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(pools={"core": Pids}).start()
    pid = int(called(broker))
    forked = os.fork()  # as `multiprocessing` does: it has all that is open here, the foreman's lifeline as well
    if forked == 0:
        signal.pause()
    try:
        broker.stop()
    finally:
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)
    assert not runs(pid)
    assert not temporary()
    assert "foreman.killed" not in caplog.text


@pytest.mark.processes
def test_workers_of_a_foreman_that_hangs_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(embedded_pools, "END_S", 9.0)
    broker = Broker(pools={"core": {"worker": Pids, "grace_s": 1}}).start()
    pid = int(called(broker))
    foreman = broker._workers._foreman.pid  # type: ignore[union-attr]
    assert foreman is not None
    os.kill(foreman, signal.SIGSTOP)
    broker.stop()
    assert "foreman.killed" in caplog.text
    assert not runs(pid)
    assert not temporary()


SCRIPT = """
import os, sys, time
from clusterbroker import Broker
from clusterbroker_workers import Pool, Worker

class Core(Worker):
    def handle(self, request):
        return str(os.getpid())

if __name__ == "__main__":
    with Broker(pools={"core": Core}) as broker, Pool(broker.url, "core") as pool:
        print(pool.call("42", b"", timeout_s=60).body.decode(), flush=True)
        if sys.argv[1:]:
            time.sleep(600)
"""


@pytest.mark.processes
def test_a_class_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "squares.py").write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, "squares.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert not runs(int(ran.stdout))


@pytest.mark.processes
def test_the_working_directory_hides_no_module_from_workers(tmp_path: Path) -> None:
    """It may be a checkout, whose modules are not compiled; a script beside it finds the ones that are installed."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/squares.py").write_text(SCRIPT)
    for name in ("aio_pika", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not this one')\n")
    ran = subprocess.run(
        [sys.executable, "scripts/squares.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr


def test_the_example() -> None:
    example = Path(__file__).resolve().parents[3] / "examples" / "worker_pool.py"
    ran = subprocess.run(
        [sys.executable, example, "--keys", "2"], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.startswith("144 unit0\nthe worker answered worker_error: b'twelve' is no number\n30 answers")
    assert not temporary()


@pytest.mark.processes
def test_nothing_is_left_of_a_process_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "squares.py").write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, "squares.py", "hangs"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as hangs:
        assert hangs.stdout is not None
        pid = int(hangs.stdout.readline())
        assert runs(pid)
        assert temporary()
        hangs.kill()
    until(lambda: not runs(pid), "the worker ends")
    until(lambda: not temporary(), "the foreman removes what was its own")


# -- what is given ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"nothing": 1}, TypeError, "pool 'core' has no setting 'nothing': choose of worker, command"),
        ({"worker": Pids, "command": ["a"]}, TypeError, "either a worker or a command"),
        ({"environment": {"A": "b"}}, TypeError, "either a worker or a command"),
        ({"command": "sleep 1"}, TypeError, "runs without a shell: give a list"),
        ({"worker": "Pids"}, TypeError, "'Pids' is no worker: give a class, or 'module:Class'"),
        ({"worker": 7}, TypeError, "7 is no worker"),
        (Lazy, TypeError, "Lazy is no worker: derive it from clusterbroker_workers.Worker"),
        (Outer.Inner, TypeError, "Outer.Inner: a process of its own cannot find it: define it at the top"),
        ({"worker": Pids, "environment": {"WORKER_ID": "1"}}, ValueError, "variables that begin with WORKER_"),
        ([], ValueError, "subprocess has nothing to run"),
    ],
)
def test_a_pool_that_cannot_be(given: PoolGiven, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Broker(pools={"core": given})


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_pools, "is_there", lambda _: False)
    with pytest.raises(ModuleNotFoundError, match=r"needs aio-pika: pip install 'clusterbroker\[workers\]'"):
        planned({"core": Pids})
    assert planned({"core": ["./worker"]})[0].template is not None, "a command needs no library"


def test_how_a_process_finds_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reference(Pids) == f"{__name__}:Pids"
    for loaded_as in ("__main__", "not_on_the_search_path"):
        module = ModuleType(loaded_as)
        module.__file__ = __file__
        monkeypatch.setitem(sys.modules, loaded_as, module)
        assert reference(type("Core", (Pids,), {"__module__": loaded_as})) == f"{__file__}:Core"
    module = ModuleType("typed_in")
    monkeypatch.setitem(sys.modules, "typed_in", module)
    with pytest.raises(TypeError, match="define it in a file"):
        reference(type("Core", (Pids,), {"__module__": "typed_in"}))


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(TEXTS, min_size=1), st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]{0,9}", fullmatch=True), TEXTS), TEXTS
)
def test_a_template_is_read_as_it_was_given(command: list[str], environment: dict[str, str], pool: str) -> None:
    if "{key}" in command[0] or any(name.startswith("WORKER_") for name in environment):
        return
    (plan,) = planned({pool: {"command": command, "environment": environment}})
    read = templates(tomllib.loads(written([plan]))["pools"])[plan.settings["template"]]
    assert list(read.command) == command
    assert environment.items() <= read.environment.items()
    assert read.driver == "subprocess"


def test_each_pool_with_workers_has_the_short_grace_unless_it_has_its_own() -> None:
    plans = planned({"a": ["./worker"], "b": {"command": ["./worker"], "grace_s": 60}, "c": {"max": 1}})
    assert [plan.settings.get("grace_s") for plan in plans] == [embedded_pools.GRACE_S, 60, None]
    assert embedded_pools.Workers(plans, None).grace_s == 60, "the foreman's bound, for all of them"


def test_a_pool_without_workers_has_no_section() -> None:
    plans = planned({"core": {"max_length": 5}})
    assert plans == [PoolPlan("core", {"max_length": 5}, None)]
    assert written(plans) == ""
