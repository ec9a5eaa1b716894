"""Stand-ins for Docker's daemon and Kubernetes' API server, whose containers are processes of this machine.

They serve what the drivers ask for, and can fail as the real ones do: gone, slow, mistaken, full, refusing. What a test
sets holds from the next request on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import psutil
from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Container:
    """A command; `process` None: it was not started. `facts`: what its maker said of it."""

    name: str
    words: list[str]
    variables: dict[str, str]
    facts: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    evicted: bool = False

    def start(self) -> None:
        if self.process is None:
            self.process = subprocess.Popen(self.words, env=self.variables, cwd="/", start_new_session=True)

    @property
    def exit(self) -> int | None:
        """As a shell has it; None: it runs, or has not begun."""
        code = None if self.process is None else self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.runs:
                assert self.process is not None
                psutil.Process(self.process.pid).send_signal(number)


@dataclass
class Faults:
    """What goes wrong. Requests are meant by a part of "METHOD path"."""

    empty: bool = False
    """Lists have nothing."""
    slow: str = ""
    """These requests are carried out, `slow_s` later."""
    slow_s: float = 0.0
    conflict: bool = False
    """What is made is made, and refused as if it had been there."""
    expired: bool = False
    """Watches begin with 410 and end."""
    answers: dict[str, int] = field(default_factory=dict)
    """Request -> status, in place of what was asked for."""
    text: str = "the test says no"
    """Of these."""
    answered: int = 0
    """How often something went wrong."""


class StandIn:
    """`with ...:` it serves, in a thread; `gone` and `back` in between."""

    def __init__(self) -> None:
        self.containers: dict[str, Container] = {}
        self.faults = Faults()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None
        self._listeners: set[asyncio.Queue[dict[str, Any]]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self.back()
        return self

    def __exit__(self, *_: object) -> None:
        self.gone()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for container in self.containers.values():
            if container.process is not None:
                container.process.kill()
                container.process.wait()

    def back(self) -> None:
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)

    def gone(self) -> None:
        """Its listener and all its connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)

    @property
    def running(self) -> list[str]:
        return [name for name, one in list(self.containers.items()) if one.runs]

    @abstractmethod
    def routes(self) -> list[web.RouteDef]: ...

    @abstractmethod
    def site(self, runner: web.AppRunner) -> web.BaseSite: ...

    async def _serve(self) -> None:
        app = web.Application(middlewares=[self._with_faults()])
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await self.site(self._runner).start()

    async def _end(self) -> None:
        if self._runner is not None:
            for listener in self._listeners:
                listener.put_nowait({})
            await self._runner.cleanup()
            self._runner = None

    def _with_faults(self) -> Any:
        @web.middleware
        async def apply(request: web.Request, handler: Handler) -> web.StreamResponse:
            asked = f"{request.method} {request.path_qs}"
            for part, status in list(self.faults.answers.items()):
                if part in asked:
                    self.faults.answered += 1
                    told = {"message": self.faults.text, "reason": self.faults.text, "code": status}
                    return web.json_response(told, status=status)
            if self.faults.slow and self.faults.slow in asked:
                self.faults.answered += 1
                await asyncio.shield(asyncio.sleep(self.faults.slow_s))
            return await handler(request)

        return apply

    async def _events(self, request: web.Request, begin: tuple[dict[str, Any], ...] = ()) -> web.StreamResponse:
        """One line for each change, until it is gone."""
        answer = web.StreamResponse(headers={"content-type": "application/json"})
        await answer.prepare(request)
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            for event in begin:
                await answer.write(json.dumps(event).encode() + b"\n")
            while not begin and (event := await queue.get()):
                await answer.write(json.dumps(event).encode() + b"\n")
        except ConnectionError:
            pass
        finally:
            self._listeners.discard(queue)
        return answer

    def _tell(self, event: dict[str, Any]) -> None:
        for listener in self._listeners:
            listener.put_nowait(event)

    def _watch(self, container: Container, event: Callable[[], dict[str, Any]]) -> None:
        """Tells of its end."""

        async def wait() -> None:
            assert container.process is not None
            await asyncio.to_thread(container.process.wait)
            self._tell(event())

        task = self._loop.create_task(wait())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


class Docker(StandIn):
    """On a socket of the file system."""

    def __init__(self, socket: str) -> None:
        super().__init__()
        self.socket = socket

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def site(self, runner: web.AppRunner) -> web.BaseSite:
        return web.UnixSite(runner, self.socket)

    def routes(self) -> list[web.RouteDef]:
        version = "/{version:v[0-9.]+}"
        return [
            web.get("/version", self._version),
            web.get(f"{version}/version", self._version),
            web.get(f"{version}/info", self._info),
            web.get(f"{version}/events", self._events),
            web.get(f"{version}/containers/json", self._list),
            web.get(version + "/containers/{name}/json", self._show),
            web.post(f"{version}/containers/create", self._create),
            web.post(version + "/containers/{name}/start", self._start),
            web.post(version + "/containers/{name}/kill", self._kill),
            web.delete(version + "/containers/{name}", self._delete),
        ]

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"ApiVersion": "1.41"})

    async def _info(self, _: web.Request) -> web.Response:
        return web.json_response({"MemTotal": 1 << 34})

    def _found(self, request: web.Request) -> Container:
        name = request.match_info["name"]
        if name not in self.containers:
            raise web.HTTPNotFound(text=json.dumps({"message": f"no such container: {name}"}))
        return self.containers[name]

    @staticmethod
    def _state(one: Container) -> str:
        return "created" if one.process is None else "running" if one.runs else "exited"

    def _event(self, one: Container) -> dict[str, Any]:
        return {"Type": "container", "Actor": {"Attributes": one.facts["Labels"]}, "time": 1, "timeNano": 1}

    async def _list(self, request: web.Request) -> web.Response:
        if self.faults.empty:
            return web.json_response([])
        labels = json.loads(request.query.get("filters", "{}")).get("label", [])
        rows = [
            {"Id": one.name, "Labels": one.facts["Labels"], "State": self._state(one)}
            for one in self.containers.values()
            if all(one.facts["Labels"].get(label.partition("=")[0]) == label.partition("=")[2] for label in labels)
        ]
        return web.json_response(rows)

    async def _show(self, request: web.Request) -> web.Response:
        one = self._found(request)
        state = {"Status": self._state(one), "ExitCode": one.exit or 0, "OOMKilled": False, "Error": ""}
        config = {"User": one.facts.get("User", "")}
        return web.json_response({"Id": one.name, "State": state, "Config": config})

    async def _create(self, request: web.Request) -> web.Response:
        config, name = await request.json(), request.query["name"]
        conflict = name in self.containers or self.faults.conflict
        if name not in self.containers:
            variables = dict(pair.split("=", 1) for pair in config["Env"])
            self.containers[name] = Container(name, config["Cmd"], variables, config)
        if conflict:
            self.faults.answered += 1
            return web.json_response({"message": f"the name {name} is already in use"}, status=409)
        return web.json_response({"Id": name, "Warnings": []}, status=201)

    async def _start(self, request: web.Request) -> web.Response:
        one = self._found(request)
        one.start()
        self._watch(one, lambda: self._event(one))
        self._tell(self._event(one))
        return web.Response(status=204)

    async def _kill(self, request: web.Request) -> web.Response:
        one = self._found(request)
        if not one.runs:
            return web.json_response({"message": "it does not run"}, status=409)
        one.send(signal.Signals[f"SIG{request.query['signal']}"])
        return web.Response(status=204)

    async def _delete(self, request: web.Request) -> web.Response:
        one = self._found(request)
        one.send(signal.SIGKILL)
        del self.containers[one.name]
        return web.Response(status=204)
