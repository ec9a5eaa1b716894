"""Daemons that start workers, started for tests: systemd of a user and of a system, podman's service, dockerd.

Their programs come from `scripts/driver-daemons DIR` (Debian's packages, unpacked and not installed); a directory in
CLUSTERBROKER_DAEMONS, else ~/.cache/clusterbroker/daemons. Each runs in a mount namespace of its own and has all its
state in a directory that is given. What is missing is said by `Missing`.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

PATIENCE_S = 60.0
IMAGE = "localhost/worker:1"
SYSTEMD = Path("/usr/lib/systemd/systemd")


class Missing(Exception):
    """Why a daemon cannot be had here."""


def programs() -> Path:
    """Raises Missing."""
    root = Path(os.environ.get("CLUSTERBROKER_DAEMONS", "~/.cache/clusterbroker/daemons")).expanduser()
    if not (root / "root").is_dir():
        raise Missing(f"no daemons in {root}: scripts/driver-daemons fetches them")
    return root


class Daemon:
    """A process in a mount namespace of its own, and its end."""

    def __init__(self, directory: Path, script: str, environment: dict[str, str], ready: Callable[[], bool]) -> None:
        if os.geteuid() != 0:
            raise Missing("needs root, for a mount namespace")
        self.log = directory / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
                env={"PATH": os.environ["PATH"], "HOME": str(directory), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end_s = time.monotonic() + PATIENCE_S
        while not ready():
            if self.process.poll() is not None or time.monotonic() > end_s:
                self.end()
                raise Missing(f"it does not run here: {self.log.read_text(errors='replace')[-600:]}")
            time.sleep(0.02)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def systemd_user(directory: Path) -> tuple[Daemon, str]:
    """The manager of a user, and the address of its bus."""
    if not SYSTEMD.exists():
        raise Missing("systemd is not installed")
    runtime = directory / "xdg"
    runtime.mkdir(mode=0o700)
    script = f"mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system && exec {SYSTEMD} --user --log-target=console"
    bus = runtime / "bus"
    daemon = Daemon(directory, script, {"XDG_RUNTIME_DIR": str(runtime)}, bus.exists)
    return daemon, f"unix:path={bus}"


_SYSTEM_UNITS = {
    "sysinit.target": "[Unit]\nDefaultDependencies=no\n",
    "basic.target": "[Unit]\nDefaultDependencies=no\n",
    "tests.target": "[Unit]\nDefaultDependencies=no\nRequires=dbus.socket\nAfter=dbus.socket\n",
    "dbus.socket": "[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream=/run/dbus/system_bus_socket\n",
    "dbus.service": "[Unit]\nDefaultDependencies=no\nRequires=dbus.socket\n[Service]\nType=notify\n"
    "ExecStart=/usr/bin/dbus-daemon --system --address=systemd: --nofork --nopidfile --systemd-activation\n",
}


def systemd_system(directory: Path) -> tuple[Daemon, str]:
    """The manager of a system, as process 1 of a namespace, and the address of its bus. It has the units of
    `directory/units`, no others, and a cgroup of its own."""
    for program in (SYSTEMD, Path("/usr/bin/dbus-daemon")):
        if not program.exists():
            raise Missing(f"no {program}: install systemd and dbus-daemon")
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    root = next((words[1] for words in mounts if words[2] == "cgroup2"), "")
    if not root:
        raise Missing("no cgroups of version 2 are mounted")
    (directory / "units").mkdir(exist_ok=True)
    for name, text in _SYSTEM_UNITS.items():
        (directory / "units" / name).write_text(text)
    (bus := directory / "bus").mkdir()
    (directory / "inside").write_text(
        f"""set -e
umount -R /sys/fs/cgroup || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /run/dbus
mount --bind {bus} /run/dbus
exec env -i container=tests PATH="$PATH" SYSTEMD_UNIT_PATH={directory}/units {SYSTEMD} --system --unit=tests.target \
    --log-target=console --show-status=0
"""
    )
    script = f"""
before={root}$(sed -n s/^0:://p /proc/self/cgroup)
group={root}/clusterbroker-tests-$$
mkdir $group && echo $$ > $group/cgroup.procs
unshare --cgroup --pid --fork --kill-child --mount --uts --ipc --net sh {directory}/inside &
inside=$!
trap 'kill -9 $inside' TERM
wait $inside
wait $inside
echo $$ > $before/cgroup.procs
for _ in $(seq 200); do
    find $group -depth -type d -exec rmdir {{}} + 2>/dev/null && break
    sleep 0.05
done
"""
    daemon = Daemon(directory, script, {}, (bus / "system_bus_socket").exists)
    return daemon, f"unix:path={bus}/system_bus_socket"


def podman(directory: Path) -> tuple[Daemon, str]:
    """Podman's service, and the address of its API."""
    environment = podman_environment(directory)
    socket = directory / "api.sock"
    script = f"{_NO_HYBRID} exec {programs()}/root/usr/bin/podman system service --time=0 unix://{socket}"
    return Daemon(directory, script, environment, lambda: _answers(socket)), f"unix://{socket}"


_NO_HYBRID = "if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi;"
"""crun has no hybrid of both cgroup versions"""


def podman_environment(directory: Path, storage: str = "vfs") -> dict[str, str]:
    """By which podman has all its state in a directory. Raises Missing."""
    root = programs() / "root"
    crun = directory / "crun"
    crun.write_text(
        # the limits that podman asks for are above those of a test's machine, and nobody may raise them
        f"""#!/bin/sh
before=
for word; do
    case $before in --bundle) file=$word/config.json ;; --process) file=$word ;; *) file= ;; esac
    [ "$file" ] && sed -i 's/"rlimits":\\[[^]]*\\]/"rlimits":[]/' "$file"
    before=$word
done
LD_LIBRARY_PATH={_libraries(root)} exec {root}/usr/bin/crun "$@"
"""
    )
    crun.chmod(0o755)
    (directory / "containers.conf").write_text(
        f"""[engine]
runtime = "crun"
conmon_path = ["{root}/usr/bin/conmon"]
cgroup_manager = "cgroupfs"
events_logger = "file"
helper_binaries_dir = ["{root}/usr/lib/podman"]
[engine.runtimes]
crun = ["{crun}"]
[containers]
netns = "host"
cgroups = "disabled"
[network]
network_backend = "netavark"
network_config_dir = "{directory}/networks"
"""
    )
    (directory / "storage.conf").write_text(
        f'[storage]\ndriver = "{storage}"\nrunroot = "{directory}/run"\ngraphroot = "{directory}/graph"\n'
    )
    policy = directory / ".config" / "containers" / "policy.json"
    policy.parent.mkdir(parents=True)
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    programs_of = directory / "bin"
    programs_of.mkdir()
    for name in ("iptables", "ip6tables"):
        (programs_of / name).symlink_to(root / "usr/sbin/xtables-nft-multi")
    return {
        "LD_LIBRARY_PATH": _libraries(root),
        "XTABLES_LIBDIR": f"{_libraries(root)}/xtables",
        "CONTAINERS_CONF": str(directory / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(directory / "storage.conf"),
        "CONTAINERS_REGISTRIES_CONF": "/dev/null",
        "HOME": str(directory),
        "PATH": f"{programs_of}:{root}/usr/bin:{root}/usr/sbin:{os.environ['PATH']}",
        "TMPDIR": str(directory),
    }


class Apart:
    """A network of its own, with podman's command in it: bridges, names and ports as on a machine of its own."""

    def __init__(self, directory: Path) -> None:
        """Raises Missing."""
        self.environment = podman_environment(directory, storage="overlay")
        for program in (programs() / "root/usr/lib/podman/netavark", Path(shutil.which("ip") or "ip of iproute2")):
            if not program.exists():
                raise Missing(f"no {program}: scripts/driver-daemons fetches what is no part of the system")
        up = directory / "up"
        script = (
            f"{_NO_HYBRID} mount -t tmpfs tmpfs /run;"
            f" exec unshare --net sh -c 'ip link set lo up && touch {up} && exec sleep infinity'"
        )
        self.holder = Daemon(directory, script, self.environment, up.exists)

    def inside(self, words: Sequence[str]) -> list[str]:
        """The command that runs another one there, in the working directory of this process."""
        return ["nsenter", f"--target={self.holder.process.pid}", "--mount", "--net", f"--wd={os.getcwd()}", *words]

    def run(self, *words: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Its output is all of it."""
        return subprocess.run(
            self.inside(words), env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=timeout_s, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def end(self) -> None:
        self.holder.end()


def dockerd(directory: Path) -> tuple[Daemon, str]:
    """Docker's daemon, and the address of its API."""
    root = programs() / "root"
    (directory / "daemon.json").write_text("{}")
    socket = directory / "api.sock"
    script = (
        f"exec {root}/usr/sbin/dockerd --bridge=none --iptables=false --ip6tables=false --storage-driver=vfs"
        f" --data-root={directory}/data --exec-root={directory}/exec --pidfile={directory}/pid --host=unix://{socket}"
        f" --config-file={directory}/daemon.json --userland-proxy=false"
    )
    environment = {
        "LD_LIBRARY_PATH": _libraries(root),
        "PATH": f"{root}/usr/bin:{root}/usr/sbin:{os.environ['PATH']}",
    }
    return Daemon(directory, script, environment, lambda: _answers(socket)), f"unix://{socket}"


def _libraries(root: Path) -> str:
    return f"{root}/usr/lib/x86_64-linux-gnu"


def _answers(socket: Path) -> bool:
    if not socket.exists():
        return False
    try:
        request(socket, "GET", "/_ping")
    except (OSError, ValueError):
        return False
    return True


def request(
    socket: Path, method: str, path: str, body: bytes = b"", kind: str = "application/x-tar", timeout_s: float = 60
) -> Any:
    """A request of Docker's API without a library: the driver's is what is tested."""
    import http.client
    import socket as sockets

    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    connection.sock = sockets.socket(sockets.AF_UNIX)
    connection.sock.settimeout(timeout_s)
    connection.sock.connect(str(socket))
    connection.request(method, path, body, {"content-type": kind})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if answer.status >= 400:
        raise ValueError(f"{method} {path}: {answer.status} {text}")
    return json.loads(text.splitlines()[-1]) if text.startswith(("{", "[")) else text


def load_image(socket: Path, user: str = "", tag: str = "1") -> None:
    """IMAGE (or its repository with another tag): busybox and nothing else, without a registry, to run as `user`."""
    busybox = next((programs() / "root").rglob("bin/busybox"))
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("tmp", 0o777), ("etc", 0o777)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            tar.addfile(folder)
        tar.add(busybox, "bin/busybox")
        for name in ("sh", "sleep", "cat", "env", "true", "id", "tr", "mv"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    name = f"repo=localhost/worker&tag={tag}"
    changes = f"&changes=USER%20{quote(user)}" if user else ""
    told = request(socket, "POST", f"/v1.40/images/create?fromSrc=-&{name}{changes}", made.getvalue())
    image = told.get("id") or told["status"]
    request(socket, "POST", f"/v1.40/images/{image}/tag?{name}")


def clear(directory: Path) -> None:
    """What containers left there."""
    shutil.rmtree(directory, ignore_errors=True)


TOKEN = "of-the-tests"
SMALL = "small"


def kubernetes(directory: Path, *, deployments: bool = False, kubelet: bool = True) -> tuple[list[Daemon], Path]:
    """etcd, kube-apiserver and the stand-in for a kubelet, and the file by which the API server is reached. With
    `deployments` the stand-in for their controller as well. SMALL is the token of an account without rights."""
    root = Path(os.environ.get("CLUSTERBROKER_DAEMONS", "~/.cache/clusterbroker/daemons")).expanduser()
    if not (root / "kube-apiserver").exists():
        raise Missing(f"no kube-apiserver in {root}: scripts/driver-kubernetes builds it")
    etcd, peer, api = _free_port(), _free_port(), _free_port()
    key = directory / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    (directory / "tokens").write_text(f"{TOKEN},tests,tests,system:masters\n{SMALL},small,small\n")
    found: list[Daemon] = []
    scripts = {
        "etcd": f"exec {root}/etcd --data-dir {directory}/etcd --unsafe-no-fsync"
        f" --listen-client-urls http://127.0.0.1:{etcd} --advertise-client-urls http://127.0.0.1:{etcd}"
        f" --listen-peer-urls http://127.0.0.1:{peer} --initial-advertise-peer-urls http://127.0.0.1:{peer}"
        f" --initial-cluster default=http://127.0.0.1:{peer}",
        "api": f"exec {root}/kube-apiserver --etcd-servers http://127.0.0.1:{etcd} --secure-port {api}"
        f" --bind-address 127.0.0.1 --cert-dir {directory}/certificates --token-auth-file {directory}/tokens"
        f" --service-account-key-file {key} --service-account-signing-key-file {key}"
        " --service-account-issuer https://tests --service-cluster-ip-range 10.0.0.0/24 --authorization-mode RBAC"
        " --disable-admission-plugins ServiceAccount,TaintNodesByCondition --enable-priority-and-fairness=false",
        "kubelet": f"cd {Path(__file__).resolve().parents[2]} &&"
        f" exec {sys.executable} -m tests.support.kubelet {api} {TOKEN}",
    }
    checks: dict[str, Callable[[], bool]] = {
        "etcd": lambda: _listens(etcd), "api": lambda: _ready(api), "kubelet": lambda: True, "deployer": lambda: True,
    }  # fmt: skip
    if not kubelet:
        del scripts["kubelet"]
    elif deployments:
        scripts["deployer"] = scripts["kubelet"].replace("tests.support.kubelet", "tests.support.deployer")
    try:
        for name, script in scripts.items():
            (directory / name).mkdir(exist_ok=True)
            found.append(Daemon(directory / name, script, {}, checks[name]))
    except BaseException:
        for daemon in reversed(found):
            daemon.end()
        raise
    config = directory / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1", "kind": "Config", "current-context": "a",
                "clusters": [
                    {"name": "a", "cluster": {"server": f"https://127.0.0.1:{api}", "insecure-skip-tls-verify": True}}
                ],
                "users": [{"name": "a", "user": {"token": TOKEN}}],
                "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            }
        )
    )  # fmt: skip
    return found, config


def _free_port() -> int:
    import socket as sockets

    with sockets.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _listens(port: int) -> bool:
    import socket as sockets

    try:
        sockets.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _ready(port: int) -> bool:
    from tests.support.kubelet import Api

    try:
        return Api(port, TOKEN).ask("GET", "/api/v1/namespaces/default") is not None
    except OSError:
        return False
