"""The Helm chart, by helm itself: it is clean, its defaults are the manifest, and its values reach the node."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterbroker.broker.boot_definitions import BootDefinitions
from clusterbroker.broker.config import ENVIRONMENT_PREFIX, NodeConfig, load
from clusterbroker.broker.foreman.drivers.kubernetes import SELECTOR
from clusterbroker.broker.foreman.templates import read_templates, template
from tests.support.daemons import Missing, kubernetes

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "clusterbroker"
MANIFEST = ROOT / "deploy" / "kubernetes" / "clusterbroker.yaml"
OF_HELM = ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart")
VARIANTS: dict[str, list[str]] = {
    "as it is": [],
    "one": ["founders=1", "replicas=1"],
    "five": ["founders=5", "replicas=5", "antiAffinity=preferred", "storage.class=fast"],
    "tls": ["tls.secret=of-the-node", "networkPolicy.from[0].podSelector.matchLabels.a=b"],
    "watched": ["serviceMonitor.enabled=true", "serviceMonitor.credentials=scraper"],
    "pools": ["pools.core.driver=kubernetes", "pools.core.image=core", "pools.core.declare=true"],
    "given": [
        "existingSecret=mine",
        'settings=default_vhost = "shop"',
        "networkPolicy.enabled=false",
        "defaultUser=root",
    ],
}


def helm() -> str:
    """Its program; skips the test without one."""
    cache = Path(os.environ.get("CLUSTERBROKER_DAEMONS", "~/.cache/clusterbroker/daemons")).expanduser() / "helm"
    found = str(cache) if cache.exists() else shutil.which("helm")
    if found is None:
        pytest.skip("no helm: scripts/fetch-helm builds it")
    return found


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm(), *words], capture_output=True, text=True, timeout=120, check=False)


def rendered(*values: str, release: str = "clusterbroker", more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Kind and name to document."""
    sets = [word for value in values for word in ("--set", value)]
    done = run("template", release, str(CHART), *sets, *more)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def documents(text: str) -> dict[str, Any]:
    made = [document for document in yaml.safe_load_all(text) if document]
    return {f"{document['kind']}/{document['metadata']['name']}": document for document in made}


def config(found: dict[str, Any], directory: Path, name: str = "clusterbroker") -> NodeConfig:
    """What a node makes of the settings file."""
    file = directory / "clusterbroker.toml"
    file.write_text(found[f"ConfigMap/{name}"]["data"]["clusterbroker.toml"])
    return load(file, {"name": f"{name}-0"})


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tuple(os.environ):
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)


def plain(value: Any) -> Any:
    """Without what helm adds to every object."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items() if key not in OF_HELM}
    return [plain(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_clean(variant: str) -> None:
    sets = [word for value in VARIANTS[variant] for word in ("--set", value)]
    done = run("lint", "--strict", str(CHART), *sets)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_defaults_are_the_manifest(tmp_path: Path) -> None:
    found, said = plain(rendered()), documents(MANIFEST.read_text())
    del found["Secret/clusterbroker"]  # of the manifest, kubectl makes it
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert config(found, tmp_path / "a") == config(said, tmp_path / "b")
    found["ConfigMap/clusterbroker"].pop("data"), said["ConfigMap/clusterbroker"].pop("data")
    del found["Service/clusterbroker-nodes"]["metadata"]["labels"]["app.kubernetes.io/component"]
    template = found["StatefulSet/clusterbroker"]["spec"]["template"]
    assert list(template["metadata"].pop("annotations")) == ["clusterbroker/settings"], "a change of settings rolls out"
    [container] = template["spec"]["containers"]
    assert container.pop("imagePullPolicy") == "IfNotPresent"
    assert found == said


@pytest.mark.parametrize("variant", VARIANTS)
def test_its_settings_are_the_nodes(variant: str, tmp_path: Path) -> None:
    found = rendered(*VARIANTS[variant], release="mq")
    made = config(found, tmp_path, "mq")
    pod = found["StatefulSet/mq"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    listening = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert listening["amqp"] == made.amqp[0].port
    assert {volume["name"] for volume in pod["volumes"]} | {"data"} == {m["name"] for m in container["volumeMounts"]}
    founders = [peer.partition("@")[0] for peer in made.peers.split(",")]
    assert founders == [f"mq-{number}" for number in range(len(founders))]
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    if variant == "tls":
        assert (listening["amqps"], listening["https"]) == (made.amqps[0].port, made.https[0].port)
        assert made.tls.certificate is not None
        assert mounted[str(made.tls.certificate.parent)] == "tls"
    if variant == "given":
        assert (made.default_vhost, made.default_user) == ("shop", "root")
        assert next(v for v in pod["volumes"] if v["name"] == "secret")["secret"]["secretName"] == "mine"
        assert not {"Secret/mq", "NetworkPolicy/mq"} & found.keys()


POOLS: dict[str, Any] = {
    "core": {
        "driver": "kubernetes",
        "image": "registry.example/core-worker",
        "command": ["/worker", "{key}", 'a "b" <c>'],
        "memory_bytes": 2_000_000_000,
        "cpus": 0.5,
        "environment": {"MODEL": "large"},
        "declare": {"max": 4, "tenant_weights": {"acme": 3}, "tenant_separator": "/"},
    },
    "by-hand": {"declare": True},
    "elsewhere": {"driver": "kubernetes", "image": "x", "namespace": "other"},
}


def test_its_pools_are_the_nodes(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"pools": POOLS, "tables": '[log]\nformat = "json"'}))
    found = rendered(release="mq", more=("--namespace", "shop", "--values", str(values)))
    made = config(found, tmp_path, "mq")
    assert made.log.format == "json"
    read = read_templates(tmp_path / "clusterbroker.toml")
    wanted = POOLS | {"core": POOLS["core"] | {"namespace": "shop"}}
    assert read == {name: template(name, section) for name, section in wanted.items()}
    definitions = made._definitions()
    assert isinstance(definitions, BootDefinitions)
    declared = {one.declare.name: one.declare for one in definitions.pools}
    assert (declared["core"].template, declared["core"].settings.max) == ("core", 4)
    assert declared.keys() == {"core", "by-hand"}


def test_nodes_have_an_account_only_for_pools_of_pods(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"pools": POOLS}))
    more = ("--namespace", "shop", "--values", str(values))
    done = run("template", "mq", str(CHART), *more)
    assert done.returncode == 0, done.stderr
    made = [document for document in yaml.safe_load_all(done.stdout) if document]
    roles = {one["metadata"]["namespace"]: one for one in made if one["kind"] == "Role"}
    assert roles.keys() == {"shop", "other"}
    rights = {rule["resources"][0]: set(rule["verbs"]) for rule in roles["shop"]["rules"]}
    assert rights == {
        "pods": {"create", "get", "list", "watch", "delete", "patch"},
        "secrets": {"create", "patch"},
        "deployments": {"create", "get", "list", "delete", "patch"},
        "horizontalpodautoscalers": {"create", "delete", "patch"},
        "scaledobjects": {"create", "delete", "patch"},
    }
    [account] = [one["metadata"]["name"] for one in made if one["kind"] == "ServiceAccount"]
    bound = [one for one in made if one["kind"] == "RoleBinding"]
    assert len(bound) == 2
    for one in bound:
        assert one["roleRef"]["name"] == roles[one["metadata"]["namespace"]]["metadata"]["name"]
        assert one["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "shop"}]
    pod = rendered(release="mq", more=more)["StatefulSet/mq"]["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (account, True)
    alone = rendered("pools.core.declare=true", release="mq")
    assert not {"ServiceAccount/mq", "Role/mq-workers"} & alone.keys()
    assert alone["StatefulSet/mq"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_workers_of_any_namespace_find_the_nodes_and_reach_them(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    closed = {"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]}
    values.write_text(yaml.safe_dump({"pools": POOLS, "networkPolicy": closed}))
    found = rendered(release="mq", more=("--namespace", "shop", "--values", str(values)))
    [container] = found["StatefulSet/mq"]["spec"]["template"]["spec"]["containers"]
    variables = {entry["name"]: entry for entry in container["env"]}
    assert variables["POD_NAMESPACE"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    told = "amqp://$(POD_NAME).mq-nodes.$(POD_NAMESPACE).svc:5672"
    assert variables["CLUSTERBROKER_ADVERTISED_AMQP"]["value"] == told
    assert list(variables).index("POD_NAMESPACE") < list(variables).index("CLUSTERBROKER_ADVERTISED_AMQP")
    [workers] = found["NetworkPolicy/mq"]["spec"]["ingress"][2:]
    assert [port["port"] for port in workers["ports"]] == ["amqp"]
    assert workers["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "podSelector": {"matchExpressions": [{"key": SELECTOR, "operator": "Exists"}]},
        }
        for namespace in ("shop", "other")
    ]
    everybody = rendered("pools.core.driver=kubernetes", "pools.core.image=x", release="mq")
    assert len(everybody["NetworkPolicy/mq"]["spec"]["ingress"]) == 2, "an open port needs no rule for workers"


def test_two_releases_do_not_meet() -> None:
    one, other = rendered(release="one"), rendered(release="other")
    assert not one.keys() & other.keys()
    chosen = [found[f"Service/{name}"]["spec"]["selector"] for name, found in (("one", one), ("other", other))]
    assert chosen[0] != chosen[1]


@pytest.mark.parametrize(
    ("value", "about"),
    [
        ("founders=2", "founders"),
        ("replicas=0", "replicas"),
        ("imagee.tag=1", "imagee"),
        ("tls.file=x", "file"),
        ("pools.core=1", "core"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(value: str, about: str) -> None:
    done = run("template", "mq", str(CHART), "--set", value)
    assert done.returncode != 0
    assert about in done.stderr


def test_monitoring_without_a_user_is_refused() -> None:
    done = run("template", "mq", str(CHART), "--set", "serviceMonitor.enabled=true")
    assert done.returncode != 0
    assert "serviceMonitor.credentials" in done.stderr


@pytest.fixture
def api_server(tmp_path: Path) -> Iterator[Path]:
    """The file by which a real kube-apiserver is reached."""
    try:
        daemons, kubeconfig = kubernetes(tmp_path)
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        yield kubeconfig
    finally:
        for daemon in reversed(daemons):
            daemon.end()


@pytest.mark.processes
def test_a_real_api_server_takes_it(api_server: Path, tmp_path: Path) -> None:
    done = run("install", "mq", str(CHART), "--kubeconfig", str(api_server), "--set", "tls.secret=of-the-node")
    assert done.returncode == 0, done.stderr
    again = run("upgrade", "mq", str(CHART), "--kubeconfig", str(api_server), "--set", "replicas=5")
    assert again.returncode == 0, again.stderr
