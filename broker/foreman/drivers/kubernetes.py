"""Driver `kubernetes`: a worker is a bare Pod. Experimental: docs/design/011-foreman-and-drivers.md says why.

    start     Pod (name = prefix and worker id) -> Secret with the credential, owned by the Pod, which waits for it
    its end   phase Succeeded or Failed; a finalizer of ours keeps the Pod and its exit status until it is removed

Where an HPA or KEDA has the number of workers, a worker is a Deployment (`deployments`). The place is
shared: the lease of one node says nothing of it, and its list has the Pods of the cluster's other places too. So a Pod
of a node that never comes back is ended by another one's foreman (rule 9 of `reconcile`). A Pod's name has its place in
it since the driver's first release, and keeps it: a start means the same to members of any release.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.config.config_exception import ConfigException

from clusterbroker.broker.foreman.drivers.deployments import Deployments
from clusterbroker.broker.foreman.drivers.pod_manifest import LABEL, labels_of, pod_spec, secret_data
from clusterbroker.broker.foreman.drivers.port import Capacity, DriverError, Place
from clusterbroker.broker.foreman.reconcile import OUT_OF_MEMORY, Seen, State
from clusterbroker.broker.foreman.spec import WorkerSpec, check
from clusterbroker.broker.foreman.templates import Template

SELECTOR: Final = f"{LABEL}place"
"""All Pods of this driver: whose they are is an annotation, which those of its first release have."""
FINALIZER: Final = "clusterbroker.io/exit-status"
ABSENT: Final = 404
CONFLICT: Final = 409
NOT_ROOT: Final = "container has runAsNonRoot and image "
"""As a kubelet's message begins (CreateContainerConfigError) about an image whose user is root or no number. The reason
alone is also that of a Secret which is not there yet."""
STATES: Final = {"Running": State.RUNNING, "Succeeded": State.EXITED, "Failed": State.EXITED}


class Pods:
    """Of one namespace. Connects with the first call."""

    name = "kubernetes"
    shared = True

    def __init__(self, place: Place, kubeconfig: str, namespace: str) -> None:
        self._place = place
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._api: Any = None  # its stubs want models where its code takes dictionaries as well
        self._deployments = Deployments(place, namespace)
        self._others: dict[str, str] = {}
        """Worker of another place -> its Pod or Deployment, as listed last."""

    async def _client(self) -> Any:
        """Raises DriverError."""
        if self._api is None:
            made = client.Configuration()
            try:
                if self._kubeconfig:
                    await config.load_kube_config(config_file=self._kubeconfig, client_configuration=made)
                else:
                    in_cluster: Any = config.load_incluster_config
                    in_cluster(client_configuration=made)
            except (ConfigException, OSError) as error:
                raise DriverError(f"kubernetes: no API server is known: {error}: set kubeconfig") from error
            self._api = client.ApiClient(made)
        return self._api

    async def _core(self) -> Any:
        """Raises DriverError."""
        return client.CoreV1Api(await self._client())

    def _error(self, what: str, error: Exception) -> DriverError:
        if isinstance(error, ApiException):
            hint = ": may the account do that (RBAC)?" if error.status == 403 else ""
            return DriverError(f"kubernetes: {what}: {error.status} {error.reason}{hint}")
        return DriverError(f"kubernetes: {what}: the API server cannot be reached: {error}: see kubeconfig")

    def _pod(self, worker_id: str) -> str:
        return self._others.get(worker_id) or f"{self._place.prefix}-{worker_id}"

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self, spec: WorkerSpec, template: Template) -> None:
        check(spec)
        api = await self._core()
        name = self._pod(spec.worker_id)
        try:
            if spec.scale is not None:
                await self._deployments.start(api.api_client, spec, template, name)
                return
            try:
                pod = await api.create_namespaced_pod(self._namespace, _manifest(self._place, spec, template, name))
            except ApiException as error:
                if error.status != CONFLICT:
                    raise
                pod = await api.read_namespaced_pod(name, self._namespace)
            if pod.status.phase == "Pending":  # a foreman may have died before it made the Secret
                await self._secret(api, spec, name, pod.metadata.uid)
        except (ApiException, aiohttp.ClientError, OSError) as error:
            raise self._error(f"start {spec.worker_id}", error) from error

    async def _secret(self, api: Any, spec: WorkerSpec, name: str, uid: str) -> None:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
        metadata = {"name": name, "ownerReferences": [owner]}
        body = {"metadata": metadata, "type": "Opaque", "data": secret_data(spec)}
        try:
            await api.create_namespaced_secret(self._namespace, body)
        except ApiException as error:
            if error.status != CONFLICT:
                raise

    # -- calls --------------------------------------------------------------------------------------------------------

    async def stop(self, worker_id: str, grace_s: float) -> None:
        await self._delete(worker_id, max(1, math.ceil(grace_s)))

    async def kill(self, worker_id: str) -> None:
        await self._delete(worker_id, 1, at_once=True)  # 0 would forget the Pod before its processes are over

    async def _delete(self, worker_id: str, grace_s: int, *, at_once: bool = False) -> None:
        api, name = await self._core(), self._pod(worker_id)
        with self._telling(f"delete {worker_id}"):
            if self._deployments.has(worker_id):
                end = self._deployments.kill if at_once else self._deployments.stop
                await end(api.api_client, name)
                return
            await api.delete_namespaced_pod(name, self._namespace, grace_period_seconds=grace_s)

    async def remove(self, worker_id: str) -> None:
        api, name = await self._core(), self._pod(worker_id)
        with self._telling(f"remove {worker_id}"):
            if self._deployments.has(worker_id):
                await self._deployments.remove(api.api_client, name)
                return
            pod = await api.read_namespaced_pod(name, self._namespace)
            if _state(pod) is not State.EXITED:
                return
            await api.delete_namespaced_pod(name, self._namespace, grace_period_seconds=0)
            await api.patch_namespaced_pod(name, self._namespace, {"metadata": {"finalizers": None}})

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Errors of the API server as DriverError; what is not there any more is none."""
        try:
            yield
        except ApiException as error:
            if error.status != ABSENT:
                raise self._error(what, error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._error(what, error) from error

    async def list(self) -> tuple[Seen, ...]:
        api = await self._core()
        try:
            found = await api.list_namespaced_pod(self._namespace, label_selector=SELECTOR)
            deployments = await self._deployments.list(api.api_client)
        except (ApiException, aiohttp.ClientError, OSError) as error:
            raise self._error("list", error) from error
        own = self._place
        rows = [*((_row(pod), pod.metadata.name) for pod in found.items), *deployments]
        self._others = {
            seen.worker_id: name for seen, name in rows if seen.cluster == own.cluster and seen.place != own.node
        }
        return tuple(seen for seen, _ in rows if seen.cluster == own.cluster)

    async def mark(self, busy: Mapping[str, bool]) -> None:
        api = await self._client()
        with self._telling("mark"):
            await self._deployments.mark(api, busy)

    async def watch(self) -> AsyncIterator[str]:
        api = await self._core()
        watching = watch.Watch()
        try:
            async for event in watching.stream(api.list_namespaced_pod, self._namespace, label_selector=SELECTOR):
                metadata = event["raw_object"].get("metadata", {})  # of an error (410) there are none: list anew
                yield str(metadata.get("labels", {}).get(f"{LABEL}worker", ""))
        except (ApiException, aiohttp.ClientError, OSError) as error:
            raise self._error("watch", error) from error
        finally:
            await watching.close()
        raise DriverError("kubernetes: watch: the API server ended it")

    async def capacity(self) -> Capacity:
        return Capacity()  # quotas are the API server's to enforce

    async def close(self) -> None:
        if self._api is not None:
            await self._api.close()
            self._api = None


def _row(pod: Any) -> Seen:
    state = _state(pod)
    exit_, why = None, ""
    if refused := _refused(pod):
        why = f'{refused}: say user = "1000" (its number) in its template, or "root"'
    elif state is State.EXITED:
        why = str(pod.status.reason or "")
        for one in pod.status.container_statuses or ():
            if (end := one.state.terminated) is not None:
                exit_ = end.exit_code
                why = OUT_OF_MEMORY if end.reason == "OOMKilled" else why
    annotations = pod.metadata.annotations or {}
    return Seen(
        pod.metadata.labels.get(f"{LABEL}worker", ""),
        state,
        annotations.get(f"{LABEL}cluster", ""),
        annotations.get(f"{LABEL}node", ""),
        annotations.get(f"{LABEL}pool", ""),
        exit_,
        why=why,
    )


def _state(pod: Any) -> State:
    if pod.metadata.deletion_timestamp is not None and not pod.spec.node_name:
        return State.EXITED  # it was never scheduled, so no kubelet ends it: only our finalizer keeps it
    if _refused(pod):
        return State.EXITED
    return STATES.get(pod.status.phase, State.STARTING)


def _refused(pod: Any) -> str:
    """Why its kubelet will never start it, though it tries again: it would be root, or nobody knows."""
    for one in pod.status.container_statuses or ():
        waiting = one.state.waiting if one.state is not None else None
        if waiting is not None and str(waiting.message or "").startswith(NOT_ROOT):
            return str(waiting.message)
    return ""


def _manifest(place: Place, spec: WorkerSpec, template: Template, name: str) -> dict[str, Any]:
    annotations = {"cluster": place.cluster, "node": place.node, "pool": spec.pool}
    return {
        "metadata": {
            "name": name,
            "labels": {SELECTOR: place.prefix, **labels_of(spec)},
            "annotations": {f"{LABEL}{label}": value for label, value in annotations.items()},
            "finalizers": [FINALIZER],
        },
        "spec": {"restartPolicy": "Never", **pod_spec(spec, template, name)},
    }
