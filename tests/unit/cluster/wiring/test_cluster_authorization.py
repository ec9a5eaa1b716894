"""Who may do what (amqp-rules.md 5.3, Permissions; CVE-2026-44838)."""

from typing import Any

import pytest

from clusterbroker.cluster.errors import NotFound, PreconditionFailed
from clusterbroker.cluster.wiring import changes as events
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.authorization import Accounts, expanded
from clusterbroker.cluster.wiring.changes import Change
from clusterbroker.cluster.wiring.entities import User

VHOSTS = ("/", "a", "b")


def check_vhost(name: str) -> None:
    if name not in VHOSTS:
        raise NotFound(name)


@pytest.fixture
def accounts() -> Accounts:
    accounts = Accounts(check_vhost)
    accounts.put_user(c.PutUser(name="u"), [])
    return accounts


def allow(accounts: Accounts, configure: str, write: str, read: str, **fields: Any) -> list[Change]:
    changes: list[Change] = []
    named = {"user": "u", "vhost": "/", **fields}
    accounts.set_permission(c.SetPermission(configure=configure, write=write, read=read, **named), changes)
    return changes


def allow_topics(accounts: Accounts, exchange: str, write: str, read: str, vhost: str = "/") -> list[Change]:
    changes: list[Change] = []
    command = c.SetTopicPermission(user="u", vhost=vhost, exchange=exchange, write=write, read=read)
    accounts.set_topic_permission(command, changes)
    return changes


def test_no_permission_no_entry(accounts: Accounts) -> None:
    assert not accounts.allowed("u", "/", "read", "q")
    assert not accounts.allowed("nobody", "/", "read", "q")


def test_three_kinds_are_searched_not_matched_in_full(accounts: Accounts) -> None:
    allow(accounts, "^conf", "write", "")
    assert accounts.allowed("u", "/", "configure", "config")
    assert not accounts.allowed("u", "/", "configure", "my-config")
    assert accounts.allowed("u", "/", "write", "may-write-here")
    assert not accounts.allowed("u", "/", "read", "anything"), "an empty pattern allows nothing"
    assert not accounts.allowed("u", "other", "configure", "config")


def test_the_default_exchange_has_a_name_for_permissions(accounts: Accounts) -> None:
    allow(accounts, "", r"^amq\.default$", "")
    assert accounts.allowed("u", "/", "write", "")
    assert not accounts.allowed("u", "/", "configure", "")


def test_a_change_holds_at_once(accounts: Accounts) -> None:
    allow(accounts, ".*", ".*", ".*")
    assert accounts.allowed("u", "/", "read", "q")
    assert allow(accounts, ".*", ".*", "^x") == [events.PermissionChanged("u", "/")]
    assert allow(accounts, ".*", ".*", "^x") == []
    assert not accounts.allowed("u", "/", "read", "q")
    assert accounts.clear_permission(c.ClearPermission(user="u", vhost="/"), [])
    assert not accounts.clear_permission(c.ClearPermission(user="u", vhost="/"), [])
    assert not accounts.allowed("u", "/", "write", "q")


def test_topic_permissions(accounts: Accounts) -> None:
    assert accounts.topic_allowed("u", "/", "write", "amq.topic", "any.key"), "none set: all keys"
    allow_topics(accounts, "amq.topic", r"^{username}\.", "^{vhost}-{client_id}$")
    assert accounts.topic_allowed("u", "/", "write", "amq.topic", "u.key")
    assert not accounts.topic_allowed("u", "/", "write", "amq.topic", "v.key")
    assert accounts.topic_allowed("u", "/", "write", "other", "v.key")
    assert accounts.topic_allowed("u", "/", "read", "amq.topic", "/-c.1", client_id="c.1")
    assert not accounts.topic_allowed("u", "/", "read", "amq.topic", "/-cx1", client_id="c.1")
    assert accounts.clear_topic_permission(c.ClearTopicPermission(user="u", vhost="/"), [])
    assert accounts.topic_allowed("u", "/", "write", "amq.topic", "v.key")


@pytest.mark.parametrize("value", [".*", "a|b", "^", "{username}", "\\", "[", "a{2}", "ü\n"])
def test_filled_in_values_are_literal(accounts: Accounts, value: str) -> None:
    allow_topics(accounts, "x", "^{client_id}$", "")
    assert accounts.topic_allowed("u", "/", "write", "x", value, client_id=value)
    assert not accounts.topic_allowed("u", "/", "write", "x", "other", client_id=value)


def test_a_value_is_filled_in_once(accounts: Accounts) -> None:
    assert expanded("{username}", username="{vhost}", vhost="v", client_id=None) == r"\{vhost\}"
    assert expanded("{client_id}", username="u", vhost="v", client_id=None) == "{client_id}"


def test_bad_patterns_unknown_users_and_vhosts(accounts: Accounts) -> None:
    with pytest.raises(PreconditionFailed):
        allow(accounts, "(", "", "")
    with pytest.raises(PreconditionFailed):
        allow_topics(accounts, "x", "(", "")
    with pytest.raises(NotFound):
        allow(accounts, "", "", "", user="v")
    with pytest.raises(NotFound, match="elsewhere"):
        allow(accounts, "", "", "", vhost="elsewhere")
    with pytest.raises(NotFound, match="elsewhere"):
        allow_topics(accounts, "x", "", "", vhost="elsewhere")


def test_deleting_a_user_takes_its_permissions(accounts: Accounts) -> None:
    allow(accounts, ".*", ".*", ".*", vhost="b")
    allow_topics(accounts, "x", "y", "z", vhost="a")
    changes: list[Change] = []
    assert accounts.delete_user(c.DeleteUser(name="u"), changes)
    gone = events.UserChanged("u", deleted=True)
    assert changes == [events.PermissionChanged("u", "a"), events.PermissionChanged("u", "b"), gone]
    assert not accounts.delete_user(c.DeleteUser(name="u"), changes)
    accounts.put_user(c.PutUser(name="u"), [])
    assert not accounts.allowed("u", "b", "read", "q")
    assert accounts.topic_permissions() == ()


def test_a_hash_is_not_in_texts() -> None:
    assert "secret" not in repr(User("u", "secret", "scrypt"))


def test_names_of_bridges_want_an_administrator_or_a_pattern_that_says_so(accounts: Accounts) -> None:
    ledger, lock = "clusterbroker.bridge.orders", "clusterbroker.mover.0b2c"
    allow(accounts, ".*", ".*", ".*")
    for name in (ledger, lock):
        for kind in ("configure", "write", "read"):
            assert not accounts.allowed("u", "/", kind, name)  # type: ignore[arg-type]
    assert accounts.allowed("u", "/", "configure", "clusterbroker.migration.0b2c")
    allow(accounts, r"^clusterbroker\.mover\.", ".*", ".*")
    assert accounts.allowed("u", "/", "configure", lock)
    assert not accounts.allowed("u", "/", "configure", ledger), "the pattern has to match as well"
    assert not accounts.allowed("u", "/", "read", lock)
    accounts.put_user(c.PutUser(name="u", tags=("administrator",)), [])
    assert accounts.allowed("u", "/", "read", ledger)
    allow(accounts, "^mine", "", "")
    assert not accounts.allowed("u", "/", "configure", ledger), "an administrator needs permissions too"
