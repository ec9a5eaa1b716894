"""How a node is reached: flags before the environment, one way at a time, passwords from where nobody sees them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.cli.api import segment
from clusterbroker.broker.cli.exit_codes import FAILED, NOT_ALLOWED, UNREACHABLE, USAGE, Failed
from clusterbroker.broker.cli.parameters import value_of
from clusterbroker.broker.cli.target import DATA_DIR, Address, Target
from tests.authority import Authority
from tests.unit.broker.oauth2 import authority

URL = "CLUSTERBROKER_URL"


def test_the_command_line_comes_before_the_environment(tmp_path: Path) -> None:
    environment = {URL: "http://h:1", "CLUSTERBROKER_DATA_DIR": str(tmp_path)}
    assert Target(environment={}).directory == DATA_DIR
    assert Target(environment={"CLUSTERBROKER_DATA_DIR": str(tmp_path)}).directory == tmp_path
    assert Target(environment=environment).directory is None, "a machine with a node has its data directory set anyway"
    assert Target(data_dir=Path("x"), environment=environment).directory == Path("x")
    assert Target(url="http://other:2", environment=environment).directory is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data_dir": Path("x"), "url": "http://h:1"}, "not both"),
        ({"user": "u"}, "--user goes with --url"),
        ({"password_file": Path("f")}, "--password-file goes with --url"),
        ({"ca_file": Path("f")}, "--ca-file goes with --url"),
        ({"token_file": Path("f")}, "--token-file goes with --url"),
        ({"url": "http://h:1", "token_file": Path("f"), "user": "u"}, "a token says by itself whose it is"),
        ({"url": "http://h:1", "as_user": "u"}, "--as is for"),
        ({"url": "ftp://u:secret@h"}, "--url is http://HOST:PORT"),
        ({"url": "http://u:secret@h:port"}, "--url"),
        ({"url": "h:15672"}, "--url is http://HOST:PORT"),
        ({"url": "amqp://h:5672"}, "the management API's, not that of AMQP clients"),
        ({"url": "http://h:1/?q=secret"}, "--url is http://HOST:PORT"),
    ],
)
def test_words_that_do_not_go_together(given: dict[str, Any], said: str) -> None:
    with pytest.raises(Failed) as failed:
        Target(**given, environment={})
    assert failed.value.code == USAGE
    assert said in failed.value.text
    assert "secret" not in failed.value.text


def test_an_address_loses_its_password() -> None:
    address = Address("https://al%40ice:p%3Aw@[::1]:15671/behind/")
    assert (address.url, address.user, address.password) == ("https://[::1]:15671/behind", "al@ice", "p:w")
    assert Address("http://h").url == "http://h"


def credentials(reach: Target) -> tuple[str, str] | str:
    assert reach._address is not None
    return reach._credentials(reach._address)


def test_where_a_password_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("of the file\nsecond line\n")
    env = {"CLUSTERBROKER_USER": "env", "CLUSTERBROKER_PASSWORD": "of env"}
    assert credentials(Target(url="http://h:1", environment=env)) == ("env", "of env")
    assert credentials(Target(url="http://u:pw@h:1", environment=env)) == ("u", "pw")
    assert credentials(Target(url="http://u:pw@h:1", user="v", environment=env)) == ("v", "of env")
    assert credentials(Target(url="http://u:pw@h:1", password_file=file, environment=env)) == ("u", "of the file")
    token = {"CLUSTERBROKER_TOKEN": "t.o.k"}
    assert credentials(Target(url="http://h:1", environment=env | token)) == "t.o.k"
    assert credentials(Target(url="http://h:1", user="v", environment=env | token)) == ("v", "of env")
    assert credentials(Target(url="http://u:pw@h:1", environment=token)) == ("u", "pw")
    assert credentials(Target(url="http://h:1", token_file=file, environment=env)) == "of the file"
    for reach, said in (
        (Target(url="http://h:1", environment={}), "as whom?"),
        (Target(url="http://u@h:1", environment={}, may_ask=False), "the password of 'u' is missing"),
        (Target(url="http://u@h:1", password_file=tmp_path / "none", environment={}), "No such file"),
        (Target(url="http://u@h:1", password_file=Path(os.devnull), environment={}), "its first line is empty"),
    ):
        with pytest.raises(Failed) as failed:
            credentials(reach)
        assert failed.value.code == USAGE
        assert said in failed.value.text


def test_no_node_and_a_node_without_its_api(tmp_path: Path, invoke: Any) -> None:
    done = invoke("queues", "list", "--data-dir", str(tmp_path))
    assert (done.exit_code, done.stderr) == (UNREACHABLE, f"clusterbroker: no node runs in {tmp_path}\n")
    done = invoke("queues", "list", "--data-dir", str(tmp_path / "none"))
    assert done.exit_code == UNREACHABLE
    done = invoke("queues", "list", "--url", "http://127.0.0.1:1", "--user", "u", CLUSTERBROKER_PASSWORD="secret")
    assert done.exit_code == UNREACHABLE
    assert "http://127.0.0.1:1 cannot be reached" in done.stderr
    assert "secret" not in done.output
    done = invoke("queues", "list", "--url", "https://127.0.0.1:1", "--user", "u", "--ca-file", "/none",
                  CLUSTERBROKER_PASSWORD="secret")  # fmt: skip
    assert done.exit_code == USAGE
    assert "--ca-file /none" in done.stderr


def test_who_may_not_and_what_is_not_there(served: Any, there: Any) -> None:
    wrong = there("users", "list", CLUSTERBROKER_PASSWORD="not this")
    assert (wrong.exit_code, wrong.stderr) == (
        NOT_ALLOWED,
        "clusterbroker: login failed for user 'guest': no such user, or another password\n",
    )
    man = {"CLUSTERBROKER_USER": "man", "CLUSTERBROKER_PASSWORD": "secret-pass"}
    refused = there("users", "list", **man)
    assert (refused.exit_code, refused.stderr) == (
        NOT_ALLOWED,
        "clusterbroker: user 'man' lacks the tag 'administrator': clusterbroker users tags man administrator\n",
    )
    absent = there("queues", "show", "none")
    assert (absent.exit_code, absent.stderr) == (FAILED, "clusterbroker: no queue 'none' in vhost '/'\n")


def test_over_the_socket_nobody_signs_in_and_may_be_anybody(served: Any, here: Any) -> None:
    assert '"name": "(operator)", "tags": ["administrator"]' in here("whoami", "--json").stdout
    assert '"name": "mon", "tags": ["monitoring"]' in here("whoami", "--json", "--as", "mon").stdout
    refused = here("users", "add", "more", "--as", "man", stdin="pw\n")
    assert (refused.exit_code, refused.stderr) == (
        NOT_ALLOWED,
        "clusterbroker: user 'man' lacks the tag 'administrator': clusterbroker users tags man administrator\n",
    )
    nobody = here("whoami", "--as", "näh")
    assert (nobody.exit_code, nobody.stderr) == (FAILED, "clusterbroker: there is no user 'näh' to act as\n")
    assert oct((served.directory / "http.sock").stat().st_mode)[-3:] == "600"


def test_a_token_goes_where_a_user_does(served: Any, invoke: Any, tmp_path: Path) -> None:
    done = invoke("whoami", "--json", "--url", served.url, CLUSTERBROKER_TOKEN=authority.token().decode())
    assert (done.exit_code, json.loads(done.stdout)["name"]) == (0, "alice"), done.stderr
    file = tmp_path / "token"
    file.write_bytes(authority.token(scope="mq.tag:monitoring") + b"\n")
    assert invoke("nodes", "list", "--url", served.url, "--token-file", str(file)).exit_code == 0
    assert invoke("users", "list", "--url", served.url, "--token-file", str(file)).exit_code == NOT_ALLOWED
    for bad in ("t.o.k", "tök"):
        done = invoke("whoami", "--url", served.url, CLUSTERBROKER_TOKEN=bad)
        assert done.exit_code == (NOT_ALLOWED if bad.isascii() else USAGE)
        assert bad not in done.output


def test_a_node_is_believed_when_its_certificate_is(served: Any, there: Any, tmp_path: Path) -> None:
    root, at = str(served.certificates["root"]), {"CLUSTERBROKER_URL": served.url_tls}
    assert there("whoami", "--ca-file", root, **at).exit_code == 0
    for words in ((), ("--ca-file", str(Authority(tmp_path)["root"]))):
        done = there("whoami", *words, **at)
        assert (done.exit_code, len(done.stderr.splitlines())) == (UNREACHABLE, 1)
        assert "certificate verify failed" in done.stderr
    by_name = {"CLUSTERBROKER_URL": served.url_tls.replace("127.0.0.1", "127.0.0.2")}
    assert there("whoami", "--ca-file", root, **by_name).exit_code == UNREACHABLE


def test_what_is_no_management_api(invoke: Any, served: Any) -> None:
    done = invoke("overview", "--url", served.url + "/elsewhere", "--user", "guest", CLUSTERBROKER_PASSWORD="guest")
    assert done.exit_code == FAILED


@given(st.text(min_size=1).filter(lambda name: not any(0xD800 <= ord(c) < 0xE000 for c in name)))
def test_a_name_is_one_segment_of_a_path(name: str) -> None:
    made = segment(name)
    assert unquote(made, errors="strict") == name
    assert "/" not in made
    assert made not in (".", "..", "")


@given(st.text())
def test_what_is_given_can_be_sent(text: str) -> None:
    json.dumps(value_of(text), allow_nan=False)
