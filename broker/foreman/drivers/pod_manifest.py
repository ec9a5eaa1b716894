"""Objects of the API server that make a worker: its container, and the Secret with its credential (pure).

`$` is doubled in values and arguments: a kubelet replaces $(NAME) in them, and a key may have that.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, Final

from clusterbroker.broker.foreman.drivers.users import ROOT
from clusterbroker.broker.foreman.spec import WorkerSpec, secrets, told
from clusterbroker.broker.foreman.templates import Template

LABEL: Final = "clusterbroker.io/"
MIN_GRACE_S: Final = 1


def pod_spec(spec: WorkerSpec, template: Template, secret: str, more: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Of a Pod that runs the worker, but for how it is restarted. `secret`: name of the Secret; `more`: variables."""
    variables = template.variables({}) | told(spec)
    container: dict[str, Any] = {
        "name": "worker",
        "image": template.image,
        "imagePullPolicy": "Never" if template.pull == "never" else "IfNotPresent",
        "env": [
            *({"name": key, "value": _plain(value)} for key, value in variables.items()),
            *(
                {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
                for key in secrets(spec, own_network=True)
            ),
            *more,
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "privileged": False, **_user(template)},
    }
    if template.command:
        container["command"] = [_plain(word) for word in template.arguments(spec.key)]
    if template.directory:
        container["workingDir"] = template.directory
    limits = {}
    if template.memory_bytes:
        limits["memory"] = str(template.memory_bytes)
    if template.cpus:
        limits["cpu"] = f"{template.cpus:g}"
    if limits:
        container["resources"] = {"limits": limits, "requests": limits}
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": max(MIN_GRACE_S, math.ceil(spec.grace_s)),
        "containers": [container],
    }
    if template.service_account:
        pod["serviceAccountName"] = template.service_account
    return pod


def _user(template: Template) -> dict[str, Any]:
    """Of a container: where its template does not name root, a kubelet refuses an image that would be root, or that
    names its user by a text, whose number nobody knows."""
    if not template.user:
        return {"runAsNonRoot": True}
    uid = 0 if template.user == ROOT else int(template.user)
    return {"runAsUser": uid, "runAsNonRoot": uid != 0}


def secret_data(spec: WorkerSpec) -> dict[str, str]:
    """Of the Secret with the worker's credential."""
    return {key: base64.b64encode(value.encode()).decode() for key, value in secrets(spec, own_network=True).items()}


def labels_of(spec: WorkerSpec) -> dict[str, str]:
    """What a Pod, and what makes Pods, says of its worker."""
    of = {
        "worker": spec.worker_id, "generation": str(spec.generation), "version": spec.version, "key": spec.key_hash,
    }  # fmt: skip
    return {f"{LABEL}{label}": value for label, value in of.items()}


def _plain(text: str) -> str:
    return text.replace("$", "$$")
