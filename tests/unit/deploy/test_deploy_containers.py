"""Container file, compose file, Kubernetes manifests: each command, setting and port in them is one of the node's."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterbroker.broker.cli.main import app  # noqa: F401 - the command must load
from clusterbroker.broker.cli.sample import variable
from clusterbroker.broker.config import ENVIRONMENT_PREFIX, NodeConfig, fields, load
from clusterbroker.broker.http.sessions import LIFE_MS
from clusterbroker.broker.server.control.cluster_operations import DRAIN_S
from clusterbroker.broker.server.goodbye import PATIENCE_S
from clusterbroker.broker.server.shell import GOODBYE_S, HAND_OVER_S
from clusterbroker.broker.server.storage import SETTLE_S
from tests.unit.deploy.commands import checked

ROOT = Path(__file__).resolve().parents[3]
CONTAINER = ROOT / "deploy" / "container" / "Containerfile"
COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
KUBERNETES = ROOT / "deploy" / "kubernetes" / "clusterbroker.yaml"
PAGE = ROOT / "docs" / "kubernetes.md"
VARIABLES = {variable(name) for name in fields()}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tuple(os.environ):
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)


def configured(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], file: Path | None = None) -> NodeConfig:
    """What a node makes of these variables and of this file."""
    for name, value in environment.items():
        if name.startswith(ENVIRONMENT_PREFIX):
            assert name in VARIABLES, f"{name} is no setting"
            monkeypatch.setenv(name, value)
    return load(file)


def ports(config: NodeConfig) -> dict[str, int]:
    listening = {"amqp": config.amqp, "cluster": config.cluster, "http": config.http}
    return {name: where[0].port for name, where in listening.items() if where}


# -- the container ----------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """(instruction, what it says) of all stages; continued lines are one, comments are none."""
    lines = [line for line in CONTAINER.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = []
    for line in joined.splitlines():
        word, _, rest = line.partition(" ")
        found.append((word, rest.strip()))
    return found


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    begins = max(place for place, (word, _) in enumerate(found) if word == "FROM")
    return found[begins:]


def image_environment() -> dict[str, str]:
    return dict(word.split("=", 1) for kind, rest in last_stage() if kind == "ENV" for word in shlex.split(rest))


def test_the_image_runs_a_node_that_is_reached_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    said = dict(last_stage())
    assert yaml.safe_load(said["ENTRYPOINT"]) == ["clusterbroker-entrypoint"]
    checked(yaml.safe_load(said["CMD"]))
    config = configured(monkeypatch, image_environment())
    assert config.amqp[0].host == config.http[0].host == "0.0.0.0"
    exposed = {int(word.split("/")[0]) for word in said["EXPOSE"].split()}
    assert set(ports(config).values()) | {5671, 5673} == exposed
    assert config.log.format == "json"


def test_the_image_is_no_root_and_keeps_its_data_in_a_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    said = dict(last_stage())
    assert said["USER"] == "clusterbroker"
    assert said["STOPSIGNAL"] == "SIGTERM", "the signal that a node takes as the end of its work"
    config = configured(monkeypatch, image_environment())
    assert str(config.data_dir) == said["VOLUME"] == said["WORKDIR"]


def test_its_health_is_asked_by_a_real_command() -> None:
    options, _, command = dict(last_stage())["HEALTHCHECK"].partition("CMD ")
    assert "--interval" in options
    assert yaml.safe_load(command)[0] == "clusterbroker"
    checked(yaml.safe_load(command)[1:])


def test_all_that_it_copies_is_there_and_sent() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert ignored[0] == "*"
    sent = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        word
        for kind, rest in instructions()
        if kind == "COPY"
        for word in rest.split()[:-1]
        if not word.startswith("--")
    }
    assert copied == sent
    for name in sorted(copied):
        assert (ROOT / name).exists(), name
    linked = {path.name for path in (ROOT / "clusterbroker").iterdir() if path.is_symlink()}
    installed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"][
        "include"
    ]
    assert linked | {name.removesuffix(".*") for name in installed} <= copied


def test_the_compiler_stays_behind() -> None:
    assert sum(kind == "FROM" for kind, _ in instructions()) == 2
    assert not any("apt-get" in rest for kind, rest in last_stage() if kind == "RUN")


# -- compose ----------------------------------------------------------------------------------------------------------


def test_compose_is_a_cluster_of_three(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = yaml.safe_load(COMPOSE.read_text())
    secrets = {f"/run/secrets/{name}" for name in said["secrets"]}
    published = []
    for name, service in said["services"].items():
        with monkeypatch.context() as patch:
            config = configured(patch, image_environment() | service["environment"])
        assert config.name == name
        assert {peer.partition("@")[0] for peer in config.peers.split(",")} == said["services"].keys()
        assert f"{name}@{name}:{config.cluster[0].port}" in config.peers.split(",")
        assert {str(config.secret_file), str(config.default_password_file)} == secrets
        inside = [int(port.rpartition(":")[2]) for port in service["ports"]]
        assert inside == [config.amqp[0].port, config.http[0].port]
        published += [port.split(":")[1] for port in service["ports"]]
        assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == CONTAINER
        [volume] = service["volumes"]
        assert volume == f"{name}:{config.data_dir}"
        assert name in said["volumes"]
    assert len(set(published)) == len(published) == 6


# -- Kubernetes -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manifests() -> dict[str, dict[str, Any]]:
    """By kind and name."""
    documents = [document for document in yaml.safe_load_all(KUBERNETES.read_text()) if document]
    for document in documents:
        assert {"apiVersion", "kind", "metadata"} <= document.keys()
    return {f"{document['kind']}/{document['metadata']['name']}": document for document in documents}


@pytest.fixture
def node_file(manifests: dict[str, Any], tmp_path: Path) -> Path:
    file = tmp_path / "clusterbroker.toml"
    file.write_text(manifests["ConfigMap/clusterbroker"]["data"]["clusterbroker.toml"])
    return file


def pod_of(manifests: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = manifests["StatefulSet/clusterbroker"]["spec"]["template"]["spec"]
    return pod


def container_of(manifests: dict[str, Any]) -> dict[str, Any]:
    [container] = pod_of(manifests)["containers"]
    assert isinstance(container, dict)
    return container


SERVICES = ("Service/clusterbroker", "Service/clusterbroker-http", "Service/clusterbroker-nodes")


def test_a_browser_stays_at_the_node_that_knows_its_session(manifests: dict[str, Any]) -> None:
    http = [name for name in SERVICES if any(port["name"] == "http" for port in manifests[name]["spec"]["ports"])]
    assert http == ["Service/clusterbroker-http", "Service/clusterbroker-nodes"], "the last has no address of its own"
    spec = manifests["Service/clusterbroker-http"]["spec"]
    assert spec["sessionAffinity"] == "ClientIP"
    assert spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"] * 1000 == LIFE_MS


def test_its_kinds_are_those_of_the_stable_apis(manifests: dict[str, Any]) -> None:
    assert {name: document["apiVersion"] for name, document in manifests.items()} == {
        "ConfigMap/clusterbroker": "v1",
        "Service/clusterbroker": "v1",
        "Service/clusterbroker-http": "v1",
        "Service/clusterbroker-nodes": "v1",
        "NetworkPolicy/clusterbroker": "networking.k8s.io/v1",
        "PodDisruptionBudget/clusterbroker": "policy/v1",
        "StatefulSet/clusterbroker": "apps/v1",
    }


def test_each_pod_is_a_member(manifests: dict[str, Any], node_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, the flags and the variables of a pod make the node that the others expect."""
    stateful, container = manifests["StatefulSet/clusterbroker"], container_of(manifests)
    names = [f"{stateful['metadata']['name']}-{number}" for number in range(stateful["spec"]["replicas"])]
    service = stateful["spec"]["serviceName"]
    assert f"Service/{service}" in manifests
    (node_file.parent / "password").touch(mode=0o600)
    (node_file.parent / "password").write_text("secret")
    node_file.write_text(node_file.read_text().replace("/etc/clusterbroker/secret/", f"{node_file.parent}/"))
    for name in names:
        with monkeypatch.context() as patch:
            environment = {
                entry["name"]: entry["value"].replace("$(POD_NAME)", name).replace("$(POD_NAMESPACE)", "shop")
                for entry in container["env"]
                if "value" in entry
            }
            words = [word.replace("$(POD_NAME)", name) for word in container["args"]]
            given = checked(words).params
            config = configured(patch, image_environment() | environment, node_file)
            options = load(node_file, {"name": given["name"]}).options()
        assert options.cluster is not None
        assert [peer for peer, _, _ in options.cluster.peers] == sorted(names)
        addresses = {peer: where for peer, where, _ in options.cluster.peers}
        assert addresses[name] == f"{name}.{service}:{config.cluster[0].port}"
        assert options.cluster.advertised_amqp == (f"amqp://{name}.{service}.shop.svc:{config.amqp[0].port}",)
        assert options.drain_ends_at_start, "the hook before a stop drains"


def test_a_pod_beside_the_founders_joins_them(
    manifests: dict[str, Any], node_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kubectl scale`: it founded a cluster of its own, was refused for ever, and its volume was spoilt."""
    (node_file.parent / "password").touch(mode=0o600)
    (node_file.parent / "password").write_text("secret")
    node_file.write_text(node_file.read_text().replace("/etc/clusterbroker/secret/", f"{node_file.parent}/"))
    for number in range(5):
        name = f"clusterbroker-{number}"
        with monkeypatch.context() as patch:
            environment = {
                entry["name"]: entry["value"].replace("$(POD_NAME)", name).replace("$(POD_NAMESPACE)", "shop")
                for entry in container_of(manifests)["env"]
                if "value" in entry
            }
            configured(patch, image_environment() | environment, node_file)
            cluster = load(node_file, {"name": name}).options().cluster
        assert cluster is not None
        founders = [f"clusterbroker-{other}.clusterbroker-nodes:5673" for other in range(3) if other != number]
        assert (cluster.founds, cluster.joins) == (number < 3, tuple(founders))
        own = next(where for peer, where, _ in cluster.peers if peer == name)
        assert own == f"{name}.clusterbroker-nodes:5673", "the others can dial that, of a founder and of a newcomer"


def test_only_nodes_reach_the_port_between_nodes(manifests: dict[str, Any]) -> None:
    labels = manifests["StatefulSet/clusterbroker"]["spec"]["template"]["metadata"]["labels"]
    spec = manifests["NetworkPolicy/clusterbroker"]["spec"]
    assert (spec["podSelector"]["matchLabels"], spec["policyTypes"]) == (labels, ["Ingress"])
    protocols = {port["name"]: port.get("protocol", "TCP") for port in container_of(manifests)["ports"]}
    between, outside = spec["ingress"]
    assert between["from"] == [{"podSelector": {"matchLabels": labels}}]
    said = [{port["port"]: port["protocol"] for port in rule["ports"]} for rule in (between, outside)]
    assert set(said[0]) == {"cluster", "beats"}
    assert said[0] | said[1] == protocols, "each port is in one of them"


def test_no_volume_goes_with_its_pod(manifests: dict[str, Any]) -> None:
    """A pod that was scaled away without `leave` may hold the only copy of a queue."""
    kept = manifests["StatefulSet/clusterbroker"]["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert kept == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_commands_of_the_page_are_commands_of_ours() -> None:
    said = re.findall(r"kubectl exec [\w-]+ -- clusterbroker ([^\n]*?)(?:   .*)?$", PAGE.read_text(), re.MULTILINE)
    assert any(words.startswith("leave") for words in said)
    for words in said:
        checked(shlex.split(words))


def test_ports_are_those_that_the_node_listens_at(
    manifests: dict[str, Any], node_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(node_file, {"name": "clusterbroker-0"})
    listening = ports(config) | {"beats": config.cluster[0].port}
    named = {port["name"]: port["containerPort"] for port in container_of(manifests)["ports"]}
    assert named == listening
    protocols = {port["name"]: port.get("protocol", "TCP") for port in container_of(manifests)["ports"]}
    assert {name for name, protocol in protocols.items() if protocol == "UDP"} == {"beats"}, "beats are datagrams"
    for service in SERVICES:
        for port in manifests[service]["spec"]["ports"]:
            assert listening[port["targetPort"]] == port["port"]
            assert port.get("protocol", "TCP") == protocols[port["targetPort"]]
    nodes = manifests["Service/clusterbroker-nodes"]["spec"]
    assert nodes["clusterIP"] == "None"
    assert nodes["publishNotReadyAddresses"] is True, "founders look for each other before they are ready"
    assert {port["targetPort"] for port in nodes["ports"]} == listening.keys()


def commands(container: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for hook in ("startupProbe", "readinessProbe", "livenessProbe"):
        yield hook, container[hook]["exec"]["command"]
    yield "preStop", container["lifecycle"]["preStop"]["exec"]["command"]


def test_probes_and_hooks_are_commands_of_ours(manifests: dict[str, Any]) -> None:
    said = dict(commands(container_of(manifests)))
    for program, *words in said.values():
        assert program == "clusterbroker"
        checked(words)
    assert said["readinessProbe"] == ["clusterbroker", "health", "--ready"], (
        "a rollout waits for copies, clients do not"
    )
    assert "--alive" in said["livenessProbe"], "who waits for a majority must not be started anew"
    assert said["preStop"] == ["clusterbroker", "drain", "--wait", "30"]


def test_probes_leave_the_command_its_time(manifests: dict[str, Any]) -> None:
    container = container_of(manifests)
    for hook, (_, *words) in commands(container):
        if hook != "preStop":
            assert container[hook]["timeoutSeconds"] > checked(words).params["timeout"], hook


def test_a_pod_has_the_time_to_drain_and_stop(manifests: dict[str, Any], node_file: Path) -> None:
    config = load(node_file, {"name": "clusterbroker-0"})
    waits_s = checked(dict(commands(container_of(manifests)))["preStop"][1:]).params["wait"]
    needed_s = (
        waits_s + DRAIN_S + PATIENCE_S + HAND_OVER_S + PATIENCE_S + config.stop_grace_s + 1 + SETTLE_S + GOODBYE_S
    )
    assert pod_of(manifests)["terminationGracePeriodSeconds"] > needed_s


def test_secrets_come_from_a_secret_and_nobody_else_reads_them(manifests: dict[str, Any], node_file: Path) -> None:
    pod, container = pod_of(manifests), container_of(manifests)
    config = load(node_file, {"name": "clusterbroker-0"})
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    claims = [
        claim["metadata"]["name"] for claim in manifests["StatefulSet/clusterbroker"]["spec"]["volumeClaimTemplates"]
    ]
    assert {*volumes, *claims} == mounts.keys()
    assert volumes["secret"]["secret"]["defaultMode"] & 0o007 == 0, "a node refuses a secret that everybody can read"
    for file in (config.secret_file, config.default_password_file):
        assert file is not None
        assert str(file.parent) == mounts["secret"]["mountPath"]
        assert f"--from-literal={file.name}=" in KUBERNETES.read_text()
    assert mounts["data"]["mountPath"] == str(config.data_dir)
    given = dict(pairwise(container["args"]))
    assert given["--config"] == mounts["settings"]["mountPath"]


def test_a_pod_has_no_more_rights_than_it_needs(manifests: dict[str, Any]) -> None:
    pod, container = pod_of(manifests), container_of(manifests)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    [uid] = [int(word) for word in re.findall(r"useradd --uid (\d+)", CONTAINER.read_text())]
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == uid


def test_two_of_three_stay(manifests: dict[str, Any]) -> None:
    labels = manifests["StatefulSet/clusterbroker"]["spec"]["template"]["metadata"]["labels"]
    budget = manifests["PodDisruptionBudget/clusterbroker"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"] == labels
    stateful = manifests["StatefulSet/clusterbroker"]["spec"]
    assert stateful["selector"]["matchLabels"] == labels
    assert stateful["podManagementPolicy"] == "Parallel", "founders wait for each other"
    [rule] = pod_of(manifests)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == labels
    for service in SERVICES:
        assert manifests[service]["spec"]["selector"] == labels
