"""Workers that an HPA or KEDA scales, for the driver `kubernetes`: a launch is a Deployment, which stands for its key.

    start     Deployment of no replicas (name = prefix and worker id) -> Secret, HPA or ScaledObject, all owned by it
              -> its replicas: the least that there may be, and the digest of the bounds as an annotation
    stop      no HPA or ScaledObject -> no replicas: each Pod gets TERM, and KILL after its grace
    its end   stopped, and without Pods. No controller deletes it, so it is there until it is removed
    removed   the Deployment; what it owns goes with it, by the API server's garbage collection

A start that breaks off, at whatever step, is taken up by the next one (rule 10 of `reconcile`): the annotation is its
last step. All replicas have the launch's credential, so the fence and the end hold for all of them. Each has its Pod's
name as WORKER_REPLICA; what the node tells of these makes `pod-deletion-cost`, so that idle ones leave first.

The Pods have no label `place`: a foreman of an earlier release lists that one, and would take each for a worker.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kubernetes_asyncio import client
from kubernetes_asyncio.client.exceptions import ApiException

from clusterbroker.broker.foreman.drivers.pod_manifest import LABEL, labels_of, pod_spec, secret_data
from clusterbroker.broker.foreman.drivers.port import DriverError, Place
from clusterbroker.broker.foreman.reconcile import Seen, State
from clusterbroker.broker.foreman.spec import Scale, WorkerSpec
from clusterbroker.broker.foreman.templates import Template

PLACE: Final = f"{LABEL}place"
OF: Final = f"{LABEL}deployment"
"""Label of a Pod: the Deployment's name."""
FIT: Final = f"{LABEL}fit"
SCALED_BY: Final = f"{LABEL}scaled-by"
STOPPED: Final = f"{LABEL}stopped"
COST: Final = "controller.kubernetes.io/pod-deletion-cost"
BUSY: Final = "1"
"""The cost of a Pod that holds a request; of others it is 0, as of those without it."""
FORBIDDEN: Final = 403
ABSENT: Final = 404
CONFLICT: Final = 409
MERGE: Final = "application/merge-patch+json"
CPU_PERCENT: Final = 70
"""Of the processors that a worker may use: above it an HPA without a metric adds workers."""
VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
"""Of a label."""
KEDA: Final = ("keda.sh", "v1alpha1")
SCALED_OBJECTS: Final = "scaledobjects"
TARGET: Final = {"apiVersion": "apps/v1", "kind": "Deployment"}


class Deployments:
    """Of one namespace. Methods raise ApiException, and what its connection does."""

    def __init__(self, place: Place, namespace: str) -> None:
        self._place = place
        self._namespace = namespace
        self._there: dict[str, dict[str, str]] = {}
        """Worker whose Deployment was listed or made last -> its Pods, and the cost of each."""

    def has(self, worker_id: str) -> bool:
        """Whether the worker is a Deployment, as far as is known."""
        return worker_id in self._there

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self, api: Any, spec: WorkerSpec, template: Template, name: str) -> None:
        """Raises DriverError for a template that says too little."""
        assert spec.scale is not None, "it has bounds"
        scaler = _scaler(spec, spec.scale, template, name)  # before anything is made
        apps = _apps(api)
        body = manifest(self._place, spec, spec.scale, template, name)
        made = await _made(apps.create_namespaced_deployment(self._namespace, body))
        found = made or await apps.read_namespaced_deployment(name, self._namespace)
        self._there.setdefault(spec.worker_id, {})
        try:
            await self._equip(api, spec, spec.scale, found, scaler)
        except (ApiException, DriverError):
            if made is not None:  # else its start fails by nobody's being ready in time
                await _gone(apps.delete_namespaced_deployment(name, self._namespace))
            raise

    async def _equip(self, api: Any, spec: WorkerSpec, scale: Scale, found: Any, scaler: dict[str, Any]) -> None:
        name = found.metadata.name
        metadata = {
            "name": name,
            "labels": {PLACE: self._place.prefix},
            "ownerReferences": [{**TARGET, "name": name, "uid": found.metadata.uid}],
        }
        await self._secret(_core(api), {"metadata": metadata, "type": "Opaque", "data": secret_data(spec)})
        annotations = found.metadata.annotations or {}
        before = annotations.get(SCALED_BY, scale.by)
        if before != scale.by:
            await self._unscale(api, name, before)
        await self._scale(api, {**scaler, "metadata": metadata}, scale.by)
        change: dict[str, Any] = {"metadata": {"annotations": {FIT: spec.fit, SCALED_BY: scale.by}}}
        if not found.spec.replicas and STOPPED not in annotations:
            change["spec"] = {"replicas": scale.least}
        await self._patch(api, name, change)

    async def _secret(self, core: Any, body: dict[str, Any]) -> None:
        if await _made(core.create_namespaced_secret(self._namespace, body)) is None:
            name, data = body["metadata"]["name"], {"data": body["data"]}
            await core.patch_namespaced_secret(name, self._namespace, data, _content_type=MERGE)

    async def _scale(self, api: Any, body: dict[str, Any], by: str) -> None:
        name, change = body["metadata"]["name"], {"spec": body["spec"]}
        if by == "hpa":
            hpas = _hpas(api)
            if await _made(hpas.create_namespaced_horizontal_pod_autoscaler(self._namespace, body)) is None:
                await hpas.patch_namespaced_horizontal_pod_autoscaler(
                    name, self._namespace, change, _content_type=MERGE
                )
            return
        any_ = _objects(api)
        where = (*KEDA, self._namespace, SCALED_OBJECTS)
        try:
            if await _made(any_.create_namespaced_custom_object(*where, body)) is None:
                await any_.patch_namespaced_custom_object(*where, name, change, _content_type=MERGE)
        except ApiException as error:
            if error.status == ABSENT:
                raise DriverError("kubernetes: the API server knows no ScaledObject: install KEDA") from error
            raise

    async def _unscale(self, api: Any, name: str, by: str) -> None:
        if by == "hpa":
            hpas = _hpas(api)
            await _gone(hpas.delete_namespaced_horizontal_pod_autoscaler(name, self._namespace))
        elif by == "keda":
            where = (*KEDA, self._namespace, SCALED_OBJECTS)
            await _gone(_objects(api).delete_namespaced_custom_object(*where, name))

    async def _patch(self, api: Any, name: str, change: dict[str, Any]) -> None:
        apps = _apps(api)
        await apps.patch_namespaced_deployment(name, self._namespace, change, _content_type=MERGE)

    # -- its end ------------------------------------------------------------------------------------------------------

    async def stop(self, api: Any, name: str) -> None:
        """The grace of its Pods is their own, and was said as they were made."""
        apps = _apps(api)
        found = await _found(apps.read_namespaced_deployment(name, self._namespace))
        if found is None:
            return
        await self._unscale(api, name, (found.metadata.annotations or {}).get(SCALED_BY, ""))
        change = {"metadata": {"annotations": {STOPPED: "true"}}, "spec": {"replicas": 0}}
        await _found(apps.patch_namespaced_deployment(name, self._namespace, change, _content_type=MERGE))

    async def kill(self, api: Any, name: str) -> None:
        """What `stop` does once more: a start that was on its way may have come after it."""
        await self.stop(api, name)
        core = _core(api)
        pods = await core.list_namespaced_pod(self._namespace, label_selector=f"{OF}={name}")
        for pod in pods.items:
            pod_name = pod.metadata.name
            await _gone(core.delete_namespaced_pod(pod_name, self._namespace, grace_period_seconds=1))

    async def remove(self, api: Any, name: str) -> None:
        apps, core = _apps(api), _core(api)
        found = await _found(apps.read_namespaced_deployment(name, self._namespace))
        if found is None:
            return
        pods = await core.list_namespaced_pod(self._namespace, label_selector=f"{OF}={name}")
        if _state(found, len(pods.items)) is State.EXITED:
            await _gone(apps.delete_namespaced_deployment(name, self._namespace, propagation_policy="Background"))

    # -- what there is ------------------------------------------------------------------------------------------------

    async def list(self, api: Any) -> list[tuple[Seen, str]]:
        """With their names. An account that may not see Deployments has made none, and needs none for bare Pods."""
        try:
            found = await _apps(api).list_namespaced_deployment(self._namespace, label_selector=PLACE)
        except ApiException as error:
            if error.status != FORBIDDEN:
                raise
            self._there = {}
            return []
        pods: dict[str, dict[str, str]] = {}
        if found.items:
            listed = await _core(api).list_namespaced_pod(self._namespace, label_selector=OF)
            for pod in listed.items:
                cost = (pod.metadata.annotations or {}).get(COST, "0")
                pods.setdefault(pod.metadata.labels[OF], {})[pod.metadata.name] = cost
        rows = [(_row(one, pods.get(one.metadata.name, {})), one.metadata.name) for one in found.items]
        self._there = {seen.worker_id: pods.get(name, {}) for seen, name in rows if seen.cluster == self._place.cluster}
        return rows

    async def mark(self, api: Any, busy: Mapping[str, bool]) -> None:
        """Replicas, and whether each holds a request: those that do leave last. A replica that is not among them is
        connected to another node, whose foreman knows."""
        core = _core(api)
        for pods in self._there.values():
            for name in pods.keys() & busy.keys():
                cost = BUSY if busy[name] else "0"
                if pods[name] != cost:
                    change = {"metadata": {"annotations": {COST: cost}}}
                    await _found(core.patch_namespaced_pod(name, self._namespace, change, _content_type=MERGE))
                    pods[name] = cost


def _core(api: Any) -> Any:  # as the three below: its stubs want models where its code takes dictionaries as well
    return client.CoreV1Api(api)


def _apps(api: Any) -> Any:
    return client.AppsV1Api(api)


def _hpas(api: Any) -> Any:
    return client.AutoscalingV2Api(api)


def _objects(api: Any) -> Any:
    return client.CustomObjectsApi(api)


async def _tried(call: Awaitable[Any], passes: Callable[[int], bool]) -> Any:
    try:
        return await call
    except ApiException as error:
        if not passes(error.status or 0):
            raise
        return None


async def _made(call: Awaitable[Any]) -> Any:
    """None: it is there already."""
    return await _tried(call, lambda status: status == CONFLICT)


async def _found(call: Awaitable[Any]) -> Any:
    """None: it is not there."""
    return await _tried(call, lambda status: status == ABSENT)


_gone: Final = _found


def _row(found: Any, pods: Mapping[str, str]) -> Seen:
    annotations = found.metadata.annotations or {}
    return Seen(
        found.metadata.labels.get(f"{LABEL}worker", ""),
        _state(found, len(pods)),
        annotations.get(f"{LABEL}cluster", ""),
        annotations.get(f"{LABEL}node", ""),
        annotations.get(f"{LABEL}pool", ""),
        fit=annotations.get(FIT, ""),
    )


def _state(found: Any, pods: int) -> State:
    """A Deployment that was stopped has ended when its controller has seen that, and no Pod is left."""
    annotations, status = found.metadata.annotations or {}, found.status
    if STOPPED not in annotations:
        return State.RUNNING if status.ready_replicas else State.STARTING
    seen = (status.observed_generation or 0) >= found.metadata.generation
    return State.EXITED if seen and not (status.replicas or pods) else State.RUNNING


def manifest(place: Place, spec: WorkerSpec, scale: Scale, template: Template, name: str) -> dict[str, Any]:
    """Of a Deployment, without a replica."""
    of = {"cluster": place.cluster, "node": place.node, "pool": spec.pool}
    annotations = {f"{LABEL}{label}": value for label, value in of.items()}
    replica = {"name": "WORKER_REPLICA", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    pod = {
        "metadata": {"labels": {OF: name, **labels_of(spec)}, "annotations": annotations},
        "spec": {"restartPolicy": "Always", **pod_spec(spec, template, name, (replica,))},
    }
    return {
        "metadata": {
            "name": name,
            "labels": {PLACE: place.prefix, **labels_of(spec)},
            "annotations": {**annotations, SCALED_BY: scale.by},
        },
        "spec": {"replicas": 0, "selector": {"matchLabels": {OF: name}}, "template": pod},
    }


def _scaler(spec: WorkerSpec, scale: Scale, template: Template, name: str) -> dict[str, Any]:
    """Of an HPA or a ScaledObject, without metadata. Raises DriverError."""
    target = {**TARGET, "name": name}
    if scale.by == "hpa":
        return {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "spec": {
                "scaleTargetRef": target,
                "minReplicas": scale.least,
                "maxReplicas": scale.most,
                "metrics": [_metric(spec, scale, template)],
            },
        }
    if not template.keda_authentication:
        raise DriverError(
            f"kubernetes: scaling = keda needs keda_authentication in [pools.{spec.template}]: name a "
            "TriggerAuthentication of the namespace, with the management API as its host"
        )
    trigger = {
        "type": "rabbitmq",
        "metadata": {
            "protocol": "http",  # counts what is held as well: else it takes workers away amid long requests
            "mode": "QueueLength",
            "value": str(scale.backlog),
            "queueName": spec.queue,
            "vhostName": spec.vhost,
        },
        "authenticationRef": {"name": template.keda_authentication},
    }
    return {
        "apiVersion": "/".join(KEDA),
        "kind": "ScaledObject",
        "spec": {
            "scaleTargetRef": target,
            "minReplicaCount": scale.least,
            "maxReplicaCount": scale.most,
            "triggers": [trigger],
        },
    }


def _metric(spec: WorkerSpec, scale: Scale, template: Template) -> dict[str, Any]:
    """Raises DriverError."""
    if not template.hpa_metric:
        each = {"type": "AverageValue", "averageValue": f"{round((template.cpus or 1) * 10 * CPU_PERCENT)}m"}
        return {"type": "Resource", "resource": {"name": "cpu", "target": each}}
    if VALUE.fullmatch(spec.queue) is None:
        raise DriverError(
            f"kubernetes: the queue '{spec.queue}' is no value of a label, by which an HPA would ask for its metric: "
            "leave hpa_metric out, or use scaling = keda"
        )
    metric = {"name": template.hpa_metric, "selector": {"matchLabels": {"queue": spec.queue}}}
    each = {"type": "AverageValue", "averageValue": str(scale.backlog)}
    return {"type": "External", "external": {"metric": metric, "target": each}}
