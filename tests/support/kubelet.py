"""A stand-in for scheduler and kubelet: runs the commands of Pods as processes of this machine, and not in containers.

    python -m tests.support.kubelet http://127.0.0.1:PORT TOKEN

What it has of a kubelet: it binds Pods, waits for Secrets that values refer to, replaces $(NAME) in values and
arguments as a kubelet does ($$ is $), users of containers (an image names root), TERM at a deletion and KILL after its
grace, phases and exit codes in the status, and the end of a deletion. API server, watch, conflicts, finalizers and
owners are the real thing.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from typing import Any

NODE = "stand-in"
LOOK_S = 0.05
AS_ROOT = {
    "reason": "CreateContainerConfigError",
    "message": 'container has runAsNonRoot and image will run as root (pod: "worker", container: worker)',
}
"""As a kubelet has it."""


class Api:
    """Requests one after the other."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._token = port, token

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """None: it is not there, or somebody was faster; or its kind comes or goes at this moment (429)."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=context, timeout=30)
        headers = {"authorization": f"Bearer {self._token}", "content-type": kind}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status in (404, 409, 429):
            return None
        if answer.status >= 400:
            raise OSError(f"{method} {path}: {answer.status} {text.decode()}")
        return json.loads(text)


def expanded(text: str, variables: dict[str, str]) -> str:
    """As kubelets do it: $$ is $, $(NAME) a variable that there is."""

    def one(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, text)


class Kubelet:
    """Pods of all namespaces."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._kill_at: dict[str, float] = {}

    def turn(self) -> None:
        for pod in self._api.ask("GET", "/api/v1/pods")["items"]:
            where = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
            uid = pod["metadata"]["uid"]
            if not pod["spec"].get("nodeName"):
                target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
                self._api.ask("POST", f"{where}/binding", {"metadata": pod["metadata"], "target": target})
            elif pod["status"].get("phase") in ("Succeeded", "Failed"):
                if "deletionTimestamp" in pod["metadata"]:
                    self._api.ask("DELETE", where, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
            elif uid in self._processes:
                self._look(where, pod, uid)
            elif "deletionTimestamp" in pod["metadata"]:
                self._over(where, 137)
            else:
                self._begin(where, pod, uid)

    def _begin(self, where: str, pod: Any, uid: str) -> None:
        [container] = pod["spec"]["containers"]
        variables: dict[str, str] = {}
        for one in container.get("env", ()):
            if "fieldRef" in one.get("valueFrom", ()):
                assert one["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name", "no other field is asked for"
                variables[one["name"]] = pod["metadata"]["name"]
            elif "valueFrom" in one:
                wanted = one["valueFrom"]["secretKeyRef"]
                secret = self._api.ask("GET", f"{where.rpartition('/pods/')[0]}/secrets/{wanted['name']}")
                if secret is None:
                    return
                variables[one["name"]] = base64.b64decode(secret["data"][wanted["key"]]).decode()
            else:
                variables[one["name"]] = expanded(one.get("value", ""), variables)
        rights = container.get("securityContext", {})
        if rights.get("runAsNonRoot") and not rights.get("runAsUser"):
            self._status(where, {"phase": "Pending", "containerStatuses": [_row({"waiting": AS_ROOT})]})
            return
        command = [expanded(word, variables) for word in container["command"]]
        path = {"PATH": "/usr/bin:/bin"}
        self._processes[uid] = subprocess.Popen(
            command, env=path | variables, cwd=container.get("workingDir", "/"), start_new_session=True,
            user=rights.get("runAsUser"),
        )  # fmt: skip
        self._status(where, {"phase": "Running", "containerStatuses": [_row({"running": {}})]})

    def _look(self, where: str, pod: Any, uid: str) -> None:
        process = self._processes[uid]
        if (code := process.poll()) is not None:
            self._over(where, 128 - code if code < 0 else code)
        elif "deletionTimestamp" in pod["metadata"]:
            grace_s = pod["metadata"]["deletionGracePeriodSeconds"]
            if uid not in self._kill_at:
                os.killpg(process.pid, signal.SIGTERM)
            self._kill_at[uid] = min(self._kill_at.get(uid, 1e18), time.monotonic() + grace_s)
            if time.monotonic() >= self._kill_at[uid]:
                os.killpg(process.pid, signal.SIGKILL)

    def _over(self, where: str, code: int) -> None:
        ended = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
        self._status(where, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [_row(ended)]})

    def _status(self, where: str, status: Any) -> None:
        self._api.ask("PATCH", f"{where}/status", {"status": status}, "application/merge-patch+json")

    def end(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _row(state: Any) -> Any:
    return {
        "name": "worker", "image": "", "imageID": "", "ready": "running" in state, "restartCount": 0, "state": state,
    }  # fmt: skip


def main() -> None:
    kubelet = Kubelet(Api(int(sys.argv[1]), sys.argv[2]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while True:
            kubelet.turn()
            time.sleep(LOOK_S)
    finally:
        kubelet.end()


if __name__ == "__main__":
    main()
