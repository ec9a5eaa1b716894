"""Launches that are Deployments, at a real API server. Stand-ins run their Pods (`tests.support.kubelet`), and keep as
many as a Deployment says (`tests.support.deployer`); nothing scales: what an HPA and KEDA read is looked at."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from foreman_support import PLACE, spec, until

from clusterbroker.broker.foreman.drivers.deployments import COST
from clusterbroker.broker.foreman.drivers.kubernetes import Pods
from clusterbroker.broker.foreman.drivers.port import DriverError, Place
from clusterbroker.broker.foreman.reconcile import Seen, State
from clusterbroker.broker.foreman.spec import Scale, WorkerSpec
from clusterbroker.broker.foreman.templates import Template
from tests.support import daemons, keda

pytestmark = pytest.mark.long
W = "w1-0"
NAME = f"{PLACE.prefix}-{W}"
NAMESPACE = "/api/v1/namespaces/default"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
HPAS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
SCALED = "/apis/keda.sh/v1alpha1/namespaces/default/scaledobjects"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
WAITS = (
    "trap 'echo over >> {files}/over; exit 0' TERM; echo \"$WORKER_REPLICA $WORKER_ID\" >> {files}/up; sleep 600 & wait"
)
DEAF = "trap '' TERM; echo up >> {files}/up; while :; do sleep 1; done"


class Server:
    """The API server."""

    def __init__(self, config: Path, files: Path) -> None:
        self.config = config
        self.files = files
        read = json.loads(config.read_text())
        self._url = read["clusters"][0]["cluster"]["server"]
        self._headers = {"Authorization": f"Bearer {read['users'][0]['user']['token']}"}

    def driver(self, place: Place = PLACE, token: str = "") -> Pods:
        file = self.config
        if token:
            read = json.loads(file.read_text())
            read["users"][0]["user"]["token"] = token
            file = file.with_name(token)
            file.write_text(json.dumps(read))
        return Pods(place, str(file), "default")

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """None: it is not there, or its kind comes or goes at this moment (429)."""
        headers = {**self._headers, "content-type": kind}
        content = None if body is None else json.dumps(body)
        said = httpx.request(method, self._url + path, headers=headers, content=content, verify=False, timeout=20)
        return None if said.status_code in (404, 429) else said.raise_for_status().json()

    def replicas(self, count: int) -> None:
        """As an HPA sets them."""
        change = {"spec": {"replicas": count}}
        self.ask("PATCH", f"{DEPLOYMENTS}/{NAME}", change, "application/merge-patch+json")

    def pods(self) -> dict[str, Any]:
        rows = self.ask("GET", f"{NAMESPACE}/pods")["items"]
        return {row["metadata"]["name"]: row for row in rows if "deletionTimestamp" not in row["metadata"]}

    def words(self, file: str) -> list[list[str]]:
        path = self.files / file
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def template(self, script: str = WAITS, **more: Any) -> Template:
        command = ("/bin/sh", "-c", script.format(files=self.files))
        return Template(driver="kubernetes", image="none", command=command, user="root", **more)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("kubernetes")
    with ExitStack() as ends:
        try:
            found, config = daemons.kubernetes(directory, deployments=True)
        except daemons.Missing as missing:
            pytest.skip(str(missing))
        for daemon in found:
            ends.callback(daemon.end)
        (directory / "files").mkdir()
        yield Server(config, directory / "files")


@pytest_asyncio.fixture
async def driver(beside: Server) -> AsyncIterator[Pods]:
    for path in beside.files.iterdir():
        path.unlink()
    made = beside.driver()
    yield made
    await cleared(made, beside)
    await made.close()


async def cleared(driver: Pods, server: Server) -> None:
    async def none_left() -> bool:
        rows = await driver.list()
        for seen in rows:
            await (driver.remove if seen.state is State.EXITED else driver.kill)(seen.worker_id)
        kinds = (f"{NAMESPACE}/pods", f"{NAMESPACE}/secrets", HPAS, SCALED)
        left = [one for kind in kinds for one in (server.ask("GET", kind) or {"items": ()})["items"]]
        return not (rows or left)

    await until(none_left, "everything removed")


def scaled(by: Any = "hpa", most: int = 4, **more: Any) -> WorkerSpec:
    bounds = Scale(by=by, least=1, most=most, backlog=5)
    return spec(scale=bounds, grace_s=more.pop("grace_s", 30.0), **more)


async def becomes(driver: Pods, state: State) -> Seen:
    async def there() -> Seen | None:
        return next((seen for seen in await driver.list() if seen.state is state), None)

    found: Seen = await until(there, str(state))
    return found


async def up(server: Server, count: int) -> list[list[str]]:
    async def there() -> bool:
        return len(server.words("up")) >= count and len(server.pods()) == count

    await until(there, f"{count} are up")
    return server.words("up")


@pytest.fixture
def with_keda(beside: Server) -> Iterator[None]:
    beside.ask("POST", CRDS, keda.CRD)
    while beside.ask("GET", SCALED) is None:
        pass
    yield
    beside.ask("DELETE", f"{CRDS}/{keda.NAME}")
    while beside.ask("GET", f"{CRDS}/{keda.NAME}") is not None:
        pass


async def test_a_launch_is_a_deployment_that_an_hpa_scales(beside: Server, driver: Pods) -> None:
    template = beside.template(cpus=2.0)
    await driver.start(scaled(), template)
    await driver.start(scaled(), template)
    seen = await becomes(driver, State.RUNNING)
    assert (seen.worker_id, seen.cluster, seen.place, seen.pool) == (W, "c1u5ter", "node1", "core")
    assert seen.fit == scaled().fit
    hpa = beside.ask("GET", f"{HPAS}/{NAME}")["spec"]
    assert hpa["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME}
    assert (hpa["minReplicas"], hpa["maxReplicas"]) == (1, 4)
    [metric] = hpa["metrics"]
    assert metric["resource"] == {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "1400m"}}
    assert await up(beside, 1) == [[*beside.pods(), W]], "a replica knows its Pod's name, and has the launch's id"
    beside.replicas(3)
    words = await up(beside, 3)
    assert {word for word, _ in words} == set(beside.pods())
    assert {word for _, word in words} == {W}
    assert [seen.worker_id for seen in await driver.list()] == [W], "however many there are, it is one launch"


async def test_its_pods_are_not_listed_by_an_earlier_release(beside: Server, driver: Pods) -> None:
    """That takes each Pod with this label for a worker, and would end those of the same id one after the other."""
    await driver.start(scaled(), beside.template())
    await up(beside, 1)
    assert all("clusterbroker.io/place" not in pod["metadata"]["labels"] for pod in beside.pods().values())


async def test_an_external_metric_is_of_the_queue(beside: Server, driver: Pods) -> None:
    template = beside.template(hpa_metric="rabbitmq_queue_messages")
    await driver.start(scaled(), template)
    [metric] = beside.ask("GET", f"{HPAS}/{NAME}")["spec"]["metrics"]
    assert metric["external"] == {
        "metric": {"name": "rabbitmq_queue_messages", "selector": {"matchLabels": {"queue": "core-req-42"}}},
        "target": {"type": "AverageValue", "averageValue": "5"},
    }
    with pytest.raises(DriverError, match="'core-req-a%20b' is no value of a label"):
        await driver.start(scaled(worker_id="w2-0", queue="core-req-a%20b"), template)
    assert [seen.worker_id for seen in await driver.list()] == [W]


async def test_keda_reads_what_waits_and_is_held(beside: Server, driver: Pods, with_keda: None) -> None:
    await driver.start(scaled("keda"), beside.template(keda_authentication="broker"))
    await becomes(driver, State.RUNNING)
    assert beside.ask("GET", f"{SCALED}/{NAME}")["spec"] == {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME},
        "minReplicaCount": 1,
        "maxReplicaCount": 4,
        "triggers": [
            {
                "type": "rabbitmq",
                "metadata": {
                    "protocol": "http", "mode": "QueueLength", "value": "5", "queueName": "core-req-42",
                    "vhostName": "/",
                },
                "authenticationRef": {"name": "broker"},
            }
        ],
    }  # fmt: skip
    await driver.stop(W, 5)
    await becomes(driver, State.EXITED)
    assert beside.ask("GET", f"{SCALED}/{NAME}") is None


async def test_without_keda_nothing_is_left_of_a_start(beside: Server, driver: Pods) -> None:
    with pytest.raises(DriverError, match="install KEDA"):
        await driver.start(scaled("keda"), beside.template(keda_authentication="broker"))
    assert await driver.list() == ()
    with pytest.raises(DriverError, match="needs keda_authentication"):
        await driver.start(scaled("keda"), beside.template())
    assert await driver.list() == ()


async def test_bounds_change_while_it_lives(beside: Server, driver: Pods, with_keda: None) -> None:
    template = beside.template(keda_authentication="broker")
    await driver.start(scaled(), template)
    await up(beside, 1)
    beside.replicas(2)
    await up(beside, 2)
    later = scaled(most=9, uris=("amqp://worker:pass@10.0.0.7:5672/%2f",))
    assert later.fit != scaled().fit
    await driver.start(later, template)
    assert beside.ask("GET", f"{HPAS}/{NAME}")["spec"]["maxReplicas"] == 9
    secret = beside.ask("GET", f"{NAMESPACE}/secrets/{NAME}")["data"]["WORKER_AMQP_URI"]
    assert secret == "YW1xcDovL3dvcmtlcjpwYXNzQDEwLjAuMC43OjU2NzIvJTJm", "replicas to come connect there"
    assert (await becomes(driver, State.RUNNING)).fit == later.fit
    assert len(beside.pods()) == 2, "what scales it has the number"
    await driver.start(scaled("keda"), template)
    assert beside.ask("GET", f"{HPAS}/{NAME}") is None
    assert beside.ask("GET", f"{SCALED}/{NAME}")["spec"]["maxReplicaCount"] == 4
    await driver.start(scaled(), template)
    assert beside.ask("GET", f"{SCALED}/{NAME}") is None
    assert beside.ask("GET", f"{HPAS}/{NAME}")["spec"]["maxReplicas"] == 4


async def test_it_ends_by_term_and_leaves_nothing(beside: Server, driver: Pods) -> None:
    await driver.start(scaled(), beside.template())
    await up(beside, 1)
    beside.replicas(2)
    await up(beside, 2)
    await driver.remove(W)
    assert (await becomes(driver, State.RUNNING)).worker_id == W, "one that runs is not removed"
    await driver.stop(W, 5)
    assert beside.ask("GET", f"{HPAS}/{NAME}") is None, "nothing scales it up again"
    await becomes(driver, State.EXITED)
    assert len(beside.words("over")) == 2
    await driver.start(scaled(), beside.template())
    await becomes(driver, State.EXITED)
    assert not beside.pods(), "one id never starts twice"
    await driver.remove(W)
    await driver.remove(W)
    assert await driver.list() == ()

    async def nothing() -> bool:
        return beside.ask("GET", f"{NAMESPACE}/secrets/{NAME}") is None and beside.ask("GET", f"{HPAS}/{NAME}") is None

    await until(nothing, "what it owned goes with it")


async def test_a_deaf_one_is_killed(beside: Server, driver: Pods) -> None:
    await driver.start(scaled(grace_s=600.0), beside.template(DEAF))
    await up(beside, 1)
    await driver.stop(W, 5)
    assert (await becomes(driver, State.RUNNING)).worker_id == W
    await driver.kill(W)
    await becomes(driver, State.EXITED)


async def test_a_start_that_broke_off_is_taken_up(beside: Server, driver: Pods) -> None:
    """The foreman died when there was the Deployment, and nothing else."""
    await driver.start(scaled(), beside.template())
    made = beside.ask("GET", f"{DEPLOYMENTS}/{NAME}")
    await cleared(driver, beside)
    of = {name: made["metadata"][name] for name in ("name", "labels", "annotations")}
    del of["annotations"]["clusterbroker.io/fit"]
    beside.ask("POST", DEPLOYMENTS, {"metadata": of, "spec": {**made["spec"], "replicas": 0}})
    seen = await becomes(driver, State.STARTING)
    assert not seen.fit, "so it is started again"
    await driver.start(scaled(), beside.template())
    assert (await becomes(driver, State.RUNNING)).fit == scaled().fit
    assert beside.ask("GET", f"{HPAS}/{NAME}") is not None


async def test_a_replica_that_holds_a_request_leaves_last(beside: Server, driver: Pods) -> None:
    await driver.start(scaled(), beside.template())
    await up(beside, 1)
    beside.replicas(3)
    await up(beside, 3)
    await driver.list()
    names = sorted(beside.pods())
    await driver.mark({names[0]: False, names[1]: True, "of-another-pool": True})
    costs = {name: pod["metadata"]["annotations"].get(COST, "none") for name, pod in beside.pods().items()}
    assert costs == {names[0]: "none", names[1]: "1", names[2]: "none"}
    beside.replicas(1)

    async def one() -> bool:
        return list(beside.pods()) == [names[1]]

    await until(one, "it is the one that stays")
    await driver.list()
    await driver.mark({names[1]: False})
    assert beside.pods()[names[1]]["metadata"]["annotations"][COST] == "0"


async def test_one_of_another_place_is_seen_and_ended(beside: Server, driver: Pods) -> None:
    other = beside.driver(Place("c1u5ter", "node2", {}))
    await driver.start(scaled(), beside.template())
    await up(beside, 1)
    [seen] = await other.list()
    assert (seen.worker_id, seen.place) == (W, "node1")
    await other.stop(W, 5)
    await becomes(other, State.EXITED)
    await other.remove(W)
    assert await driver.list() == ()
    stranger = beside.driver(Place("an0ther", "node1", {}))
    await driver.start(scaled(worker_id="w2-0"), beside.template())
    assert await stranger.list() == ()
    await other.close()
    await stranger.close()


async def test_an_account_of_bare_pods_needs_no_more_rights(beside: Server, driver: Pods) -> None:
    """As it was made for a release that had no Deployments."""
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "watch", "delete", "patch"]}
    more = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}
    beside.ask("POST", f"{ROLES}/roles", {"metadata": {"name": "pods"}, "rules": [rule, more]})
    subject = {"kind": "User", "name": "small", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "pods"}
    beside.ask("POST", f"{ROLES}/rolebindings", {"metadata": {"name": "pods"}, "roleRef": role, "subjects": [subject]})
    small = beside.driver(token=daemons.SMALL)

    async def allowed() -> bool:  # the role is in force a moment later
        try:
            return await small.list() == ()
        except DriverError:
            return False

    await until(allowed, "it may list Pods")
    await small.start(spec(), beside.template())
    assert (await becomes(small, State.RUNNING)).worker_id == W
    with pytest.raises(DriverError, match="403 Forbidden: may the account do that"):
        await small.start(scaled(worker_id="w2-0"), beside.template())
    await small.close()
