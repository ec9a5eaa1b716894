"""Who may do what (amqp-rules.md 5.3, Permissions; CVE-2026-44838)."""

import pytest

from clusterbroker.cluster.authorization import Accounts, expanded
from clusterbroker.cluster.entities import Permission, TopicPermission, User
from clusterbroker.cluster.errors import NotFound, PreconditionFailed


@pytest.fixture
def accounts() -> Accounts:
    accounts = Accounts()
    accounts.put_user(User("u", "", "scrypt"))
    return accounts


def test_no_permission_no_entry(accounts: Accounts) -> None:
    assert not accounts.allowed("u", "/", "read", "q")
    assert not accounts.allowed("nobody", "/", "read", "q")


def test_three_kinds_are_searched_not_matched_in_full(accounts: Accounts) -> None:
    accounts.set_permission(Permission("u", "/", "^conf", "write", ""))
    assert accounts.allowed("u", "/", "configure", "config")
    assert not accounts.allowed("u", "/", "configure", "my-config")
    assert accounts.allowed("u", "/", "write", "may-write-here")
    assert not accounts.allowed("u", "/", "read", "anything"), "an empty pattern allows nothing"
    assert not accounts.allowed("u", "other", "configure", "config")


def test_the_default_exchange_has_a_name_for_permissions(accounts: Accounts) -> None:
    accounts.set_permission(Permission("u", "/", "", r"^amq\.default$", ""))
    assert accounts.allowed("u", "/", "write", "")
    assert not accounts.allowed("u", "/", "configure", "")


def test_a_change_holds_at_once(accounts: Accounts) -> None:
    accounts.set_permission(Permission("u", "/", ".*", ".*", ".*"))
    assert accounts.allowed("u", "/", "read", "q")
    assert accounts.set_permission(Permission("u", "/", ".*", ".*", "^x"))
    assert not accounts.allowed("u", "/", "read", "q")
    assert accounts.clear_permission("u", "/")
    assert not accounts.allowed("u", "/", "write", "q")


def test_topic_permissions(accounts: Accounts) -> None:
    assert accounts.topic_allowed("u", "/", "write", "amq.topic", "any.key"), "none set: all keys"
    accounts.set_topic_permission(TopicPermission("u", "/", "amq.topic", r"^{username}\.", "^{vhost}-{client_id}$"))
    assert accounts.topic_allowed("u", "/", "write", "amq.topic", "u.key")
    assert not accounts.topic_allowed("u", "/", "write", "amq.topic", "v.key")
    assert accounts.topic_allowed("u", "/", "write", "other", "v.key")
    assert accounts.topic_allowed("u", "/", "read", "amq.topic", "/-c.1", client_id="c.1")
    assert not accounts.topic_allowed("u", "/", "read", "amq.topic", "/-cx1", client_id="c.1")
    assert accounts.clear_topic_permission("u", "/", None)
    assert accounts.topic_allowed("u", "/", "write", "amq.topic", "v.key")


@pytest.mark.parametrize("value", [".*", "a|b", "^", "{username}", "\\", "[", "a{2}", "ü\n"])
def test_filled_in_values_are_literal(accounts: Accounts, value: str) -> None:
    accounts.set_topic_permission(TopicPermission("u", "/", "x", "^{client_id}$", ""))
    assert accounts.topic_allowed("u", "/", "write", "x", value, client_id=value)
    assert not accounts.topic_allowed("u", "/", "write", "x", "other", client_id=value)


def test_a_value_is_filled_in_once(accounts: Accounts) -> None:
    assert expanded("{username}", username="{vhost}", vhost="v", client_id=None) == r"\{vhost\}"
    assert expanded("{client_id}", username="u", vhost="v", client_id=None) == "{client_id}"


def test_bad_patterns_and_unknown_users(accounts: Accounts) -> None:
    with pytest.raises(PreconditionFailed):
        accounts.set_permission(Permission("u", "/", "(", "", ""))
    with pytest.raises(PreconditionFailed):
        accounts.set_topic_permission(TopicPermission("u", "/", "x", "(", ""))
    with pytest.raises(NotFound):
        accounts.set_permission(Permission("v", "/", "", "", ""))


def test_deleting_a_user_takes_its_permissions(accounts: Accounts) -> None:
    accounts.set_permission(Permission("u", "b", ".*", ".*", ".*"))
    accounts.set_topic_permission(TopicPermission("u", "a", "x", "y", "z"))
    assert accounts.delete_user("u") == ["a", "b"]
    assert accounts.delete_user("u") is None
    accounts.put_user(User("u", "", "scrypt"))
    assert not accounts.allowed("u", "b", "read", "q")
    assert accounts.topic_permissions() == ()


def test_a_hash_is_not_in_texts() -> None:
    assert "secret" not in repr(User("u", "secret", "scrypt"))
