"""Templates: what a config file may say of what is executed, and who may write it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from foreman_support import spec

from clusterbroker.broker.foreman.spec import BadSpec, Scale, check, secrets, told
from clusterbroker.broker.foreman.templates import BadTemplate, Template, fits, read_templates, template, templates

RUN = {"driver": "subprocess", "command": ["/bin/worker", "{key}", "--mode={key}"]}


def test_a_key_is_a_whole_argument_or_none() -> None:
    read = template("core", RUN)
    assert read.arguments("a b;$(x)") == ["/bin/worker", "a b;$(x)", "--mode={key}"]


@pytest.mark.parametrize(
    "facts, said",
    [
        ({"command": "worker {key}"}, r"pools.core.command: it runs without a shell: write a list"),
        ({"command": ["{key}"]}, "a key cannot be the program"),
        ({"driver": "subprocess"}, "pools.core.command: subprocess has nothing to run"),
        ({"driver": "docker"}, "pools.core.image: docker has nothing to run"),
        ({"driver": "shell"}, "invalid enum value 'shell'"),
        ({**RUN, "comand": []}, "unknown field `comand`"),
        ({**RUN, "environment": {"WORKER_KEY": "1"}}, "WORKER_KEY: variables that begin with WORKER_ are set"),
        ({**RUN, "env_pass": ["WORKER_AMQP_URI"]}, "variables that begin with WORKER_ are set"),
        ({**RUN, "environment": {"A=B": "1"}}, "'A=B' is no name of a variable"),
        ({**RUN, "environment": {"A": "\0"}}, "NUL cannot be given"),
        ({**RUN, "memory_bytes": -1}, "pools.core.memory_bytes: less than 0"),
        ({**RUN, "unit": "core@.service"}, "pools.core.unit: a template unit of systemd"),
        ({"driver": "systemd", "unit": "core.service"}, "is written as core@.service"),
        ({**RUN, "driver": "systemd", "properties": {"ExecStartPre": "x"}}, "ExecStartPre is not allowed: use"),
        ({**RUN, "driver": "systemd", "properties": {"PrivateTmp": "yes"}}, "PrivateTmp is of kind bool"),
        ({"driver": "docker", "image": "a", "mounts": ["data:/data"]}, "is written as /of/the/host:/in/the/container"),
        ({"driver": "kubernetes", "image": "a", "user": "app"}, "kubernetes knows users by their numbers: write user"),
        ([], r"it is a section: write \[pools.core\]"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_setting(facts: Any, said: str) -> None:
    with pytest.raises(BadTemplate, match=said) as found:
        template("core", facts)
    assert "\n" not in str(found.value)
    assert str(found.value).startswith("pools.core")


def test_a_name_of_a_template() -> None:
    with pytest.raises(BadTemplate, match="letters, digits"):
        templates({"a b": {}})


def test_the_version_is_what_a_worker_gets_of_it() -> None:
    read = template("core", RUN)
    assert template("other", dict(reversed(RUN.items()))).version == read.version
    assert (
        msgspec.structs.replace(read, max_workers=7, on_node_exit="keep", update="none", surge=3).version
        == read.version
    )
    for facts in ({"command": ("/bin/other",)}, {"environment": {"A": "1"}}, {"memory_bytes": 1}, {"user": "nobody"}):
        assert msgspec.structs.replace(read, **facts).version != read.version


def written(path: Path, mode: int = 0o644) -> Path:
    path.write_text('name = "a"\n[pools.core]\n[pools.more]\ndriver = "subprocess"\ncommand = ["/bin/true"]\n')
    path.chmod(mode)
    return path


def test_templates_of_a_file(tmp_path: Path) -> None:
    assert {name: one.driver for name, one in read_templates(written(tmp_path / "a.toml")).items()} == {
        "core": "noop",
        "more": "subprocess",
    }


@pytest.mark.parametrize("mode", [0o646, 0o664])
def test_rule_66_a_file_that_others_may_write(tmp_path: Path, mode: int) -> None:
    file = written(tmp_path / "a.toml", mode)
    with pytest.raises(BadTemplate, match=rf"others may write it \(mode {mode:04o}\): chmod go-w {file}"):
        read_templates(file)


def test_rule_66_a_file_in_a_folder_of_all(tmp_path: Path) -> None:
    file = written(tmp_path / "a.toml")
    tmp_path.chmod(0o777)
    with pytest.raises(BadTemplate, match="is open to every user"):
        read_templates(file)
    tmp_path.chmod(0o1777)
    assert read_templates(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_rule_66_a_file_of_another_user(tmp_path: Path) -> None:
    file = written(tmp_path / "a.toml")
    os.chown(file, 12345, 0)
    with pytest.raises(BadTemplate, match="user 12345 owns it"):
        read_templates(file)


def test_a_launch_without_a_template() -> None:
    assert fits(spec(version=Template().version), {"core": Template()}, "a.toml") == ""
    assert "another one" in fits(spec(version="of before"), {"core": Template()}, "a.toml")
    why = fits(spec(), {"more": Template()}, "a.toml")
    assert "there is no [pools.core] in a.toml (there are: more)" in why


# -- specs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts, said",
    [
        ({"worker_id": "../../etc/x"}, "is no worker id"),
        ({"worker_id": "w1"}, "is no worker id"),
        ({"key": "a\0b"}, "no NUL"),
        ({"key": "é" * 128}, "at most 255 bytes"),
        ({"key": "\ud800"}, "is not UTF-8"),
        ({"queue": "a\0"}, "NUL"),
    ],
)
def test_a_spec_that_no_driver_may_see(facts: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSpec, match=said):
        check(spec(**facts))


def test_the_empty_key_and_the_longest() -> None:
    check(spec(key=""))
    check(spec(key="é" * 127 + "a"))


def test_rule_38_the_variables() -> None:
    assert list(told(spec()))[:5] == [
        "WORKER_ID", "WORKER_KEY", "WORKER_POOL", "WORKER_REQUESTS_QUEUE", "WORKER_ACTIVITY_EXCHANGE",
    ]  # fmt: skip
    assert list(secrets(spec())) == ["WORKER_AMQP_URI", "WORKER_AMQP_URIS"]
    assert secrets(spec())["WORKER_AMQP_URI"] == spec().uris[0]
    assert "WORKER_SPARE" not in told(spec())
    spare = told(spec(spare=True))
    assert spare["WORKER_SPARE"] == "1"
    assert not {"WORKER_KEY", "WORKER_REQUESTS_QUEUE"} & spare.keys()
    read = template("core", {**RUN, "env_pass": ["HOME"], "environment": {"A": "1"}})
    assert read.variables({"HOME": "/h", "TOKEN": "secret"}) == {"HOME": "/h", "A": "1"}


def test_rule_65_nothing_but_a_config_file_says_what_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clusterbroker.broker.config import ConfigError, load
    from clusterbroker.broker.foreman.frames import LaunchRow, ToForeman

    file = written(tmp_path / "a.toml")
    assert load(file).options().pools_file == file
    monkeypatch.setenv("CLUSTERBROKER_POOLS__CORE__COMMAND", '["/bin/true"]')
    with pytest.raises(ConfigError, match="there is no such setting"):
        load(file)
    monkeypatch.delenv("CLUSTERBROKER_POOLS__CORE__COMMAND")
    with pytest.raises(ConfigError, match=r"pools.*there is no such setting"):
        load(file, {"pools.core.command": "x"})
    names = {field.name for kind in (LaunchRow, *ToForeman.__args__) for field in msgspec.structs.fields(kind)}
    names |= {field.name for field in msgspec.structs.fields(type(spec()))}
    assert names.isdisjoint({"command", "image", "environment", "user", "mounts", "properties"}), "the wire has no word"


def test_a_template_that_is_wrong_ends_the_start(tmp_path: Path) -> None:
    from clusterbroker.broker.config import ConfigError, load

    file = written(tmp_path / "a.toml")
    file.write_text('[pools.core]\ncommand = "x"\n')
    with pytest.raises(ConfigError, match=r"pools\.core\.command"):
        load(file)


def test_what_declares_a_pool_makes_no_other_version() -> None:
    versions = {template("core", {**RUN, "declare": said}).version for said in (False, True, {"max": 4})}
    assert versions == {template("core", RUN).version}


def test_a_worker_with_a_network_of_its_own_gets_no_loopback_address_beside_others() -> None:
    local = tuple(f"amqp://w:p@{host}:5672/" for host in ("127.0.0.1", "[::1]", "localhost"))
    elsewhere = ("amqps://w:p@n1.example:5671/", "amqp://w:p@10.0.0.1:5672/")
    both, alone = spec(uris=local + elsewhere), spec(uris=local)
    assert secrets(both)["WORKER_AMQP_URIS"].split(",") == [*local, *elsewhere]
    apart = secrets(both, own_network=True)
    assert apart == {"WORKER_AMQP_URI": elsewhere[0], "WORKER_AMQP_URIS": ",".join(elsewhere)}
    assert secrets(alone, own_network=True) == secrets(alone), "there is no other one"


def test_settings_of_later_releases_make_no_other_version() -> None:
    """Of a template without them: else an upgrade would replace all workers, and members of both would disagree."""
    plain = template("core", {"driver": "kubernetes", "image": "core", "kubeconfig": "/k", "namespace": "n"})
    assert plain.version == "23e195e59e54a2d9", "as the release before had it"
    for name in ("hpa_metric", "keda_authentication"):
        assert msgspec.structs.replace(plain, **{name: "x"}).version != plain.version


def test_a_launch_that_something_else_scales_fits_one_driver() -> None:
    known = {"core": template("core", RUN), "pods": template("pods", {"driver": "kubernetes", "image": "core"})}
    scale = Scale(by="keda")
    assert fits(spec(template="pods", version=known["pods"].version, scale=scale), known, "a.toml") == ""
    assert fits(spec(template="core", version=known["core"].version), known, "a.toml") == ""
    assert fits(spec(template="core", version=known["core"].version, scale=scale), known, "a.toml") == (
        "the pool has scaling = keda, and [pools.core] in a.toml the driver subprocess: that is for kubernetes"
    )
