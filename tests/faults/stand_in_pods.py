"""A stand-in for Kubernetes' API server with its kubelet, in one: Pods are processes of this machine.

What it has of them: names that are taken once (409), Secrets that a Pod waits for, finalizers, deletions with a grace,
watches, evictions. The real API server is tried with the drivers' contract suite.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.faults.stand_in import Container, StandIn

STAMP = "2026-01-01T00:00:00Z"
GONE = 410


@dataclass
class Pod(Container):
    """`facts` is its manifest."""

    secret: dict[str, str] = field(default_factory=dict)
    deleted: bool = False
    reason: str = ""

    @property
    def document(self) -> dict[str, Any]:
        metadata = self.facts["metadata"] | {"uid": f"uid of {self.name}"}
        metadata |= {"deletionTimestamp": STAMP} if self.deleted else {}
        status: dict[str, Any] = {"phase": self.phase, "reason": self.reason or None}
        if self.exit is not None:
            about = {"name": "worker", "image": "none", "imageID": "none", "ready": False, "restartCount": 0}
            status["containerStatuses"] = [about | {"state": {"terminated": {"exitCode": self.exit}}}]
        spec = {"nodeName": "stand-in", "containers": [{"name": "worker"}]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}

    @property
    def phase(self) -> str:
        if self.process is None:
            return "Pending"
        return "Running" if self.exit is None else "Failed" if self.exit or self.reason else "Succeeded"


class Pods(StandIn):
    """On a port of loopback, without TLS; `kubeconfig` says so."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port

    @property
    def kubeconfig(self) -> str:
        """Its text."""
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {"token": "t"}}]
        about = {"apiVersion": "v1", "kind": "Config", "current-context": "c"}
        return json.dumps(about | {"clusters": [cluster], "contexts": [context], "users": users})

    def site(self, runner: web.AppRunner) -> web.BaseSite:
        return web.TCPSite(runner, "127.0.0.1", self.port)

    def routes(self) -> list[web.RouteDef]:
        space = "/api/v1/namespaces/{space}"
        return [
            web.get(f"{space}/pods", self._list),
            web.post(f"{space}/pods", self._create),
            web.post(f"{space}/secrets", self._secret),
            web.get(space + "/pods/{name}", self._read),
            web.delete(space + "/pods/{name}", self._delete),
            web.patch(space + "/pods/{name}", self._patch),
            web.get("/apis/apps/v1/namespaces/{space}/deployments", self._deployments),
        ]

    # -- what others do ----------------------------------------------------------------------------------------------

    def evict(self, name: str) -> None:
        """As a kubelet does that is short of memory: the Pod fails."""
        pod = self._pod(name)
        pod.reason = "Evicted"
        pod.send(signal.SIGKILL)

    def remove_by_force(self, name: str) -> None:
        """As somebody does who deletes it with its finalizer."""
        pod = self.containers.pop(name)
        pod.send(signal.SIGKILL)

    # -- requests ----------------------------------------------------------------------------------------------------

    def _pod(self, name: str) -> Pod:
        pod = self.containers.get(name)
        if not isinstance(pod, Pod):
            raise web.HTTPNotFound(text=json.dumps({"code": 404, "message": f"pods {name} not found"}))
        return pod

    def _event(self, pod: Pod) -> dict[str, Any]:
        return {"type": "MODIFIED", "object": pod.document}

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            if not self.faults.expired:
                return await self._events(request)
            self.faults.answered += 1
            error = {"kind": "Status", "apiVersion": "v1", "code": GONE, "reason": "Expired", "message": "too old"}
            return await self._events(request, ({"type": "ERROR", "object": error},))
        label, equals, value = request.query.get("labelSelector", "").partition("=")
        found = [one.document for one in list(self.containers.values()) if isinstance(one, Pod)]
        labels = [(one, one["metadata"]["labels"].get(label)) for one in found]
        chosen = [one for one, said in labels if said == value or (said is not None and not equals)]
        items = [] if self.faults.empty else chosen
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})

    async def _deployments(self, _request: web.Request) -> web.Response:
        """There are none."""
        return web.json_response({"kind": "DeploymentList", "apiVersion": "apps/v1", "metadata": {}, "items": []})

    async def _create(self, request: web.Request) -> web.Response:
        manifest = await request.json()
        name = manifest["metadata"]["name"]
        conflict = name in self.containers or self.faults.conflict
        if name not in self.containers:
            (container,) = manifest["spec"]["containers"]
            words = [word.replace("$$", "$") for word in container["command"]]
            self.containers[name] = Pod(name, words, {}, manifest)
        if conflict:
            self.faults.answered += 1
            return web.json_response({"code": 409, "message": f"pods {name} already exists"}, status=409)
        return web.json_response(self._pod(name).document, status=201)

    async def _secret(self, request: web.Request) -> web.Response:
        """What its Pod waits for."""
        body = await request.json()
        pod = self._pod(body["metadata"]["name"])
        pod.secret = {key: base64.b64decode(value).decode() for key, value in body["data"].items()}
        for one in pod.facts["spec"]["containers"][0]["env"]:
            value = one["value"].replace("$$", "$") if "value" in one else pod.secret[one["name"]]
            pod.variables[one["name"]] = value
        pod.start()
        self._watch(pod, lambda: self._event(pod))
        self._tell(self._event(pod))
        return web.json_response(body, status=201)

    async def _read(self, request: web.Request) -> web.Response:
        return web.json_response(self._pod(request.match_info["name"]).document)

    async def _delete(self, request: web.Request) -> web.Response:
        pod = self._pod(request.match_info["name"])
        pod.deleted = True
        pod.send(signal.SIGTERM)
        grace_s = float(request.query.get("gracePeriodSeconds", 30))
        asyncio.get_running_loop().call_later(grace_s, pod.send, signal.SIGKILL)
        return web.json_response(pod.document)

    async def _patch(self, request: web.Request) -> web.Response:
        """Finalizers alone."""
        pod = self._pod(request.match_info["name"])
        document = pod.document
        pod.facts["metadata"]["finalizers"] = None
        if pod.deleted and not pod.runs:
            with contextlib.suppress(KeyError):
                del self.containers[pod.name]
        return web.json_response(document)
