"""The embedded broker where there is less than on Linux, and one sentence on Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LESS = """
import errno, fcntl, os, select, signal, socket, sys, time

for module, names in {
    os: (
        "posix_fallocate", "posix_fadvise", "fdatasync", "memfd_create", "eventfd", "pidfd_open", "SEEK_DATA",
        "SEEK_HOLE",
    ),
    fcntl: ("F_ADD_SEALS", "F_SETPIPE_SZ", "F_OFD_SETLK"),
    select: ("epoll",),
    signal: ("pidfd_send_signal", "sigwaitinfo", "sigtimedwait"),
    socket: ("SO_PEERCRED", "SOCK_NONBLOCK", "SOCK_CLOEXEC", "TCP_USER_TIMEOUT"),
    time: ("CLOCK_BOOTTIME",),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

fcntl.F_FULLFSYNC, asked, do = 51, [], fcntl.fcntl


def full(fd, command, *more):
    if command != fcntl.F_FULLFSYNC:
        return do(fd, command, *more)
    asked.append(os.fstat(fd).st_mode)
    if len(asked) % 2:
        raise OSError(errno.ENOTTY, "this file system has none")
    return 0


fcntl.fcntl = full


def no_proc(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "socket.bind") and "/proc/" in str(arguments):
        raise FileNotFoundError(errno.ENOENT, "no such file", "/proc")


sys.addaudithook(no_proc)
"""
"""As on macOS, in a fresh interpreter: what the system lacks is taken away, and a flush down to the disk is there."""

LIFE = """
import pika
from clusterbroker import Broker

where = sys.argv[1] or None
broker = Broker(data_dir=where)
for _ in range(2):
    with broker as b, pika.BlockingConnection(pika.URLParameters(b.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for n in range(3):
            channel.basic_publish("", "q", b"%d" % n, pika.BasicProperties(delivery_mode=2))
        kept = [channel.basic_get("q", auto_ack=True)[2] for _ in range(2)]
        assert kept == ([b"0", b"1"] if where is None or _ == 0 else [b"2", b"0"]), kept
assert bool(asked) == bool(where), "what is kept is flushed"
print("lived")
"""


MANAGED = """
import json, os, signal, sys, time, urllib.request
from clusterbroker import Broker

assert not hasattr(os, "pidfd_open"), "taken away by sitecustomize"
os.environ.update(NOTIFY_SOCKET=sys.argv[2], WATCHDOG_USEC="1000000")
from clusterbroker.broker.server.supervisor import Supervisor
assert not Supervisor().notify("READY=1"), "nobody listens, which is no error"


def ask(url):
    request = urllib.request.Request(f"{url}/api/overview", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["node"]


with Broker(data_dir=sys.argv[1], http=True) as broker:
    name, beside = ask(broker.http_url), broker._beside
    first = beside.pid
    os.kill(first, signal.SIGKILL)
    assert ask(broker.http_url) == name, "another one answers: the connection waits in the backlog"
    assert beside.restarts == 1 and beside.pid != first
    last = beside.pid
try:
    os.kill(last, 0)
except ProcessLookupError:
    print("lived")
"""


def test_a_management_process_is_watched_where_there_is_less(tmp_path: Path) -> None:
    """The node and its management process, each in an interpreter without these."""
    (tmp_path / "sitecustomize.py").write_text(LESS)
    environment = {"PATH": os.defpath, "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", MANAGED, str(tmp_path / "data"), str(tmp_path / "notify")],
        capture_output=True, text=True, check=False, timeout=120, env=environment,
    )  # fmt: skip
    assert done.stdout == "lived\n", done.stderr[-4000:]


@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "with a directory"])
def test_a_broker_lives_where_there_is_less(kept: bool, tmp_path: Path) -> None:
    where = str(tmp_path / "data") if kept else ""
    done = subprocess.run(
        [sys.executable, "-c", LESS + LIFE, where], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "lived\n", done.stderr[-4000:]


def test_windows_is_told_in_one_sentence() -> None:
    code = "import sys; sys.platform = 'win32'; import clusterbroker"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: clusterbroker runs on Linux and macOS; on Windows, install it in WSL"
    )
