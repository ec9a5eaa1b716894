"""Configuration: every setting described, the order of precedence, and errors that say what to do."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.cli.main import app, start
from clusterbroker.broker.cli.start import quick_options
from clusterbroker.broker.config import (
    COMMANDS_READ,
    ENVIRONMENT_PREFIX,
    ConfigError,
    NodeConfig,
    load,
    settings,
    unread_variables,
)
from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.oauth2.options import OAuth2Options
from clusterbroker.broker.server.alarms import AlarmOptions
from clusterbroker.broker.server.audit import AuditOptions
from clusterbroker.broker.server.listener import Address
from clusterbroker.broker.server.options import ServerOptions
from clusterbroker.broker.server.tls import TlsOptions
from clusterbroker.journal.options import JournalOptions

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tuple(os.environ):
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "node.toml"


def test_every_setting_is_described() -> None:
    for name, (_, description) in settings().items():
        assert len(description) > 10, name
        assert description.rstrip().endswith("."), name


FIXED = {
    NodeOptions: {"name", "incarnation", "group_bytes_max", "amqp10_product"},
    JournalOptions: {"read_bytes_max", "read_gap_bytes"},
    AlarmOptions: set(),
    TlsOptions: set(),
}
"""What is set elsewhere, or deliberately nowhere."""


@pytest.mark.parametrize(
    ("section", "options"),
    [("limits", NodeOptions), ("journal", JournalOptions), ("alarms", AlarmOptions), ("tls", TlsOptions)],
)
def test_what_the_floors_offer_can_be_set(section: str, options: Any) -> None:
    offered = {field.name for field in dataclasses.fields(options)} - FIXED[options]
    can_be_set = {name.partition(".")[2] for name in settings() if name.startswith(section + ".")}
    assert offered == can_be_set


def test_defaults_are_those_of_the_floors() -> None:
    assert load().options() == ServerOptions(data_dir=Path("clusterbroker-data"))


def test_the_size_of_a_group_is_the_journals() -> None:
    options = load(None, {"journal.group_bytes_max": 1 << 20}).options()
    assert options.node.group_bytes_max == options.journal.group_bytes_max == 1 << 20


def test_flag_before_environment_before_file_before_default(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('name = "file"\n[limits]\nheartbeat_s = 1\nchannel_max = 11\nframe_max_bytes = "1 MiB"\n')
    assert load(file).name == "file"
    monkeypatch.setenv("CLUSTERBROKER_NAME", "environment")
    monkeypatch.setenv("CLUSTERBROKER_LIMITS__HEARTBEAT_S", "2")
    config = load(file)
    assert (config.name, config.limits.heartbeat_s, config.limits.channel_max) == ("environment", 2, 11)
    config = load(file, {"name": "flag", "limits.heartbeat_s": 3, "data_dir": None})
    assert (config.name, config.limits.heartbeat_s, config.limits.channel_max) == ("flag", 3, 11)
    assert config.options().node.frame_max_bytes == 1 << 20
    assert config.data_dir == Path("clusterbroker-data"), "a flag that was not given says nothing"


def test_proxies_that_are_set_are_told_from_those_that_are_not(file: Path) -> None:
    """Those on this machine are believed more when somebody has said so."""
    assert load().options().http_proxies is None
    file.write_text('http_proxies = "127.0.0.1,::1"')
    assert load(file).options().http_proxies == ("127.0.0.1", "::1")


def test_lists_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERBROKER_AMQP", "127.0.0.1:1,[::1]:2")
    monkeypatch.setenv("CLUSTERBROKER_LIMITS__LOOPBACK_USERS", "guest, test")
    options = load().options()
    assert options.amqp == (Address("127.0.0.1", 1), Address("::1", 2))
    assert options.node.loopback_users == ("guest", "test")
    monkeypatch.setenv("CLUSTERBROKER_LIMITS__LOOPBACK_USERS", "")
    assert load().options().node.loopback_users == ()


@pytest.mark.parametrize(
    ("toml", "line"),
    [
        ('nmae = "x"', "nmae ({file}): there is no such setting: see `clusterbroker settings`"),
        ("[limits]\nheartbeat = 3", "limits.heartbeat ({file}): there is no such setting"),
        ("[limits]\nchannel_max = true", "limits.channel_max ({file}): input should not be true or false"),
        ("name = 2026-01-01", "name ({file}): input should be a valid string"),
        ('drain_ends_at_start = "perhaps"', "drain_ends_at_start ({file}): input should be a valid boolean"),
        ("limits = 3", "limits ({file}): it is a section: write [limits], and its settings below"),
        ('[name]\nx = "y"', "name ({file}): input should be a valid string"),
        ("name = 1\nname = 2", "--config {file}: not TOML"),
        ('[limits]\nheartbeat_s = "x"', "limits.heartbeat_s ({file}): input should be a valid integer"),
        ("[limits]\nframe_max_bytes = 100", "limits.frame_max_bytes ({file}): input should be greater than"),
        ('amqp = "5672"', "amqp ({file}): '5672' is not HOST:PORT"),
        ("amqp = 5672", "amqp ({file}): write it as HOST:PORT"),
        ('amqps = ":5671"', "amqps ({file}): needs a certificate: set [tls] certificate"),
        ('https = ":15671"', "https ({file}): needs a certificate: set [tls] certificate"),
        ('http_client_certificate = "required"', "http_client_certificate ({file}): needs authorities"),
        ('http_proxies = "10.0.0.0/8,proxy"', "http_proxies ({file}): 'proxy' is no address and no network"),
        ('[tls]\nminimum_version = "1.1"', "tls.minimum_version ({file}): input should be '1.2' or '1.3'"),
        ('[oauth2]\nresource_server_id = "mq"', "oauth2.keys_file ({file}): give either keys_file or keys_url"),
        (
            '[oauth2]\nresource_server_id = "mq"\nkeys_file = "k"\nkeys_url = "https://h/"',
            "oauth2.keys_file ({file}): give either keys_file or keys_url",
        ),
        (
            '[oauth2]\nresource_server_id = "mq"\nkeys_url = "http://keys.example/"',
            "oauth2.keys_url ({file}): 'http://keys.example/' is no address of keys",
        ),
        (
            '[oauth2]\nresource_server_id = "mq"\nkeys_file = "k"\nalgorithms = "RS256,HS256"',
            "oauth2.algorithms ({file}): 'HS256' cannot be allowed",
        ),
        (
            '[oauth2]\nresource_server_id = "mq"\nkeys_file = "k"\nalgorithms = "none"',
            "oauth2.algorithms ({file}): 'none' cannot be allowed",
        ),
        ('amqp = ""', "amqp ({file}): the node would listen nowhere"),
        ('[tls]\nclient_certificate = "wanted"', "tls.client_certificate ({file}): needs authorities"),
        ('http = "15672"', "http ({file}): '15672' is not HOST:PORT"),
        ('cluster = ":1,:2"', "cluster ({file}): one address is enough"),
        ('peers = "a@h:1,b@h:2"', "peers ({file}): 'node' is not among them"),
        ('peers = "a@h:1,a@h:2,node@h:3"', "peers ({file}): 'a' is named twice, at h:1 and at h:2"),
        ('peers = "a@h:1,node@h:1"', "peers ({file}): two members at h:1"),
        ('peers = "a@h,node@h:1"', "peers ({file}): 'h' is not HOST:PORT"),
        ('peers = "h:1,b@h:2"', "peers ({file}): 'h:1' is not NAME@HOST:PORT"),
        ("join = true", "join ({file}): nobody could be asked: name members of the cluster by peers"),
        ('advertised_cluster = "h"', "advertised_cluster ({file}): 'h' is not HOST:PORT"),
        ('name = "a b"', "name ({file}): string should match pattern"),
        ('[log]\nlevel = "loud"', "log.level ({file}): input should be 'debug'"),
        ("name = ", "--config {file}: not TOML"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_setting(file: Path, toml: str, line: str) -> None:
    file.write_text(toml)
    with pytest.raises(ConfigError) as raised:
        load(file)
    assert str(raised.value).startswith(line.format(file=file))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("toml", "meant"),
    [
        ('nmae = "x"', "name"),
        ("[limits]\nheartbeat = 3", "limits.heartbeat_s"),
        ("heartbeat_s = 3", "limits.heartbeat_s"),
        ('[tls]\ncertificat = "x"', "tls.certificate"),
        ('[log]\nname = "x"', "name"),
    ],
)
def test_a_word_that_is_no_setting_is_told_what_may_be_meant(file: Path, toml: str, meant: str) -> None:
    file.write_text(toml)
    with pytest.raises(ConfigError, match=f"; is it {meant}\\?$"):
        load(file)


def test_a_word_that_is_like_no_setting_is_told_no_other(file: Path) -> None:
    file.write_text("[limits]\nmemmory = 3")
    with pytest.raises(ConfigError, match=r"see `clusterbroker settings`$"):
        load(file)


def test_every_option_of_start_may_stand_in_the_file() -> None:
    command = next(command for command in app.registered_commands if command.name is None and command.callback is start)
    assert command.callback is not None
    options = set(inspect.signature(command.callback).parameters) - {"config"}
    assert {"log.level" if option == "log_level" else option for option in options} <= settings().keys()


def test_a_password_from_a_file(file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.touch(mode=0o600)
    secret.write_text("hunter2\n")
    file.write_text(f'default_password_file = "{secret}"\n')
    assert load(file).options().default_password == "hunter2"
    for setting in (load(file), load(file).options()):
        assert "hunter2" not in repr(setting)
    with pytest.raises(ConfigError, match=r"^default_password_file \(.*\): default_password is given as well"):
        load(file, {"default_password": "x"})


def test_tokens_and_audit_as_they_were_set(file: Path, tmp_path: Path) -> None:
    file.write_text(
        f'[oauth2]\nresource_server_id = "mq"\nkeys_file = "{tmp_path}/k"\nalgorithms = "ES256, RS256"\n'
        f'[audit]\nfile = "{tmp_path}/audit.log"\nfile_bytes_max = "1 MiB"\n'
    )
    options = load(file).options()
    assert options.oauth2 == OAuth2Options("mq", keys_file=tmp_path / "k", algorithms=("ES256", "RS256"))
    assert options.audit == AuditOptions(tmp_path / "audit.log", 1 << 20)
    assert load().options().oauth2 is None
    with pytest.raises(ConfigError, match=r"^audit.file: there is no directory .*/none: make it"):
        load(None, {"audit.file": str(tmp_path / "none" / "audit.log")}).options()


def test_tokens_need_their_library(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('[oauth2]\nresource_server_id = "mq"\nkeys_file = "k"\n')
    monkeypatch.setattr("clusterbroker.broker.extras.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install 'clusterbroker\[oauth2\]'"):
        load(file)


def test_a_password_file_that_cannot_be_used_is_told_in_one_line(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    config = load(None, {"default_password_file": str(secret)})
    for prepare, line in (
        (lambda: None, "No such file or directory: name a file that the node can read"),
        (lambda: secret.touch(mode=0o600), "is empty: write the password there"),
        (lambda: secret.write_bytes(b"\xff"), "not UTF-8: write the password as text"),
        (lambda: secret.chmod(0o604), "not UTF-8"),
        (lambda: secret.write_bytes(b"hunter2"), r"is open to every user \(mode 0604\): chmod 600"),
    ):
        prepare()
        with pytest.raises(ConfigError, match=line) as raised:
            config.options()
        assert str(raised.value).startswith(f"default_password_file: {secret}")
        assert "hunter2" not in str(raised.value)


def test_definitions_are_read_before_anything_begins(tmp_path: Path) -> None:
    definitions = tmp_path / "definitions.json"
    config = load(None, {"definitions_file": str(definitions)})
    with pytest.raises(ConfigError, match=r"^definitions_file: .*definitions.json: No such file"):
        config.options()
    definitions.write_text('{"queues": [{"vhost": "/", "name": "a"}, {"vhost": "/"}]}')
    with pytest.raises(ConfigError, match=r"^definitions_file: .*queues\[1\]: "):
        config.options()
    definitions.write_text('{"queues": [{"vhost": "/", "name": "a"}]}')
    read = config.options().definitions
    assert read is not None
    assert len(read.plan) == 1
    assert load().options().definitions is None


def test_where_a_wrong_value_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^name \(flag\):"):
        load(None, {"name": "a b"})
    monkeypatch.setenv("CLUSTERBROKER_LIMITS__CHANNEL_MAX", "-1")
    with pytest.raises(ConfigError, match=r"^limits.channel_max \(environment\):"):
        load()


def test_a_misspelt_variable_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERBROKER_LIMITS__HEARTBEAT", "1")
    with pytest.raises(ConfigError, match="CLUSTERBROKER_LIMITS__HEARTBEAT: there is no such setting"):
        load()


def test_variables_that_are_no_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERBROKER_TOKEN", "1")
    load()


def test_a_variable_that_nothing_reads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLUSTERBROKER_LOG_FORMAT", "CLUSTERBROKER_XYZZY", "CLUSTERBROKER_HTTP_PORT"):
        monkeypatch.setenv(name, "json")
    read = {name for name in settings() if name != "log.format"}
    for name in ("CLUSTERBROKER_SERVICE_HOST", "CLUSTERBROKER_PORT_5672_TCP_ADDR", "CLUSTERBROKER_HEADLESS_PORT"):
        monkeypatch.setenv(name, "tcp://10.0.0.1:5672")  # of a service in Kubernetes
    for name in read:
        monkeypatch.setenv("CLUSTERBROKER_" + name.upper().replace(".", "__"), "1")
    assert unread_variables() == [
        "CLUSTERBROKER_HTTP_PORT is no setting; is it CLUSTERBROKER_HTTP_PROXIES?",
        "CLUSTERBROKER_LOG_FORMAT is no setting; is it CLUSTERBROKER_LOG__FORMAT?",
        "CLUSTERBROKER_XYZZY is no setting",
    ]


def test_the_variables_that_commands_read_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    places = (path for room in ("broker", "cluster", "journal", "pipeline") for path in (ROOT / room).rglob("*.py"))
    named = {name for path in places for name in re.findall(r'"CLUSTERBROKER_([A-Z_]+)"', path.read_text("utf-8"))}
    assert named >= COMMANDS_READ
    for name in named:
        monkeypatch.setenv(f"CLUSTERBROKER_{name}", "1")
    assert unread_variables() == []


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory: name a TOML file"):
        load(tmp_path / "missing.toml")


def test_the_password_is_not_shown() -> None:
    config = load(None, {"default_password": "hunter2"})
    assert config.options().default_password == "hunter2"
    assert "hunter2" not in repr(config)
    assert "hunter2" not in repr(config.options())


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"name": "a", "data_dir": "/tmp/x", "amqp": "127.0.0.1:0,[::1]:5672", "log.level": "debug"},
        {"name": None, "data_dir": "x"},
    ],
)
def test_the_quick_way_gives_the_same_as_the_long_one(flags: dict[str, Any]) -> None:
    quick = quick_options(flags)
    config = load(None, flags)
    assert quick == (config.options(), config.log.level, config.log.format)


def test_http_is_served_where_it_is_said_and_nowhere_by_default() -> None:
    assert load(None, {}).options().http == ()
    assert load(None, {"http": "127.0.0.1:0,[::1]:15672"}).options().http == (
        Address("127.0.0.1", 0),
        Address("::1", 15672),
    )


@pytest.mark.parametrize("flags", [{"name": "a b"}, {"amqp": "x"}, {"amqp": ""}, {"log.level": "x"}, {"http": "x"}])
def test_the_quick_way_leaves_errors_to_the_long_one(flags: dict[str, Any]) -> None:
    assert quick_options(flags) is None


def test_the_quick_way_is_not_taken_past_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERBROKER_NAME", "x")
    assert quick_options({}) is None


def test_the_model_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        NodeConfig().name = "b"  # type: ignore[misc]
