"""ScaledObject of KEDA, as its reference describes what is used here: the API server judges ours by it.

The schema is closed as all of the API server are: a field that it does not have is dropped, and a test sees that.
"""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}
WHOLE = {"type": "integer", "format": "int32"}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


TEXTS = {"type": "object", "additionalProperties": TEXT}
TRIGGER = _object(
    ("type", "metadata"),
    type=TEXT, name=TEXT, metadata=TEXTS, metricType=TEXT, authenticationRef=_object(("name",), name=TEXT, kind=TEXT),
)  # fmt: skip
SPEC = _object(
    ("scaleTargetRef", "triggers"),
    scaleTargetRef=_object(("name",), apiVersion=TEXT, kind=TEXT, name=TEXT, envSourceContainerName=TEXT),
    triggers={"type": "array", "items": TRIGGER},
    pollingInterval=WHOLE, cooldownPeriod=WHOLE, idleReplicaCount=WHOLE, minReplicaCount=WHOLE, maxReplicaCount=WHOLE,
)  # fmt: skip
NAME = "scaledobjects.keda.sh"
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": NAME},
    "spec": {
        "group": "keda.sh",
        "scope": "Namespaced",
        "names": {
            "kind": "ScaledObject", "listKind": "ScaledObjectList",
            "plural": "scaledobjects", "singular": "scaledobject",
        },
        "versions": [
            {
                "name": "v1alpha1", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": _object((), spec=SPEC)},
            }
        ],
    },
}  # fmt: skip
