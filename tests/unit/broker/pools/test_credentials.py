"""Credentials of workers: their form, and what they reveal."""

from __future__ import annotations

import pytest

from clusterbroker.broker.pools.credentials import WorkerKey, launch_of, user_of

KEY = WorkerKey(b"k" * 32)


def test_a_password_is_of_one_launch_and_of_one_key() -> None:
    password = KEY.password("w7-0")
    assert KEY.matches("w7-0", password.encode())
    assert not KEY.matches("w7-1", password.encode())
    assert not WorkerKey(b"l" * 32).matches("w7-0", password.encode())
    assert not KEY.matches("w7-0", b"")
    assert len(password) == 43


def test_without_a_key_nothing_is_good() -> None:
    nobody = WorkerKey()
    assert not nobody.matches("w7-0", b"")
    with pytest.raises(ValueError, match="no key"):
        nobody.password("w7-0")


def test_a_user_name_is_of_a_launch_or_of_nobody() -> None:
    assert launch_of(user_of("w7-0")) == "w7-0"
    for name in ("worker:", "worker:w7", "worker:w7-0 ", "worker:w7-0\n", "worker:w٣-0", "guest", "w7-0"):
        assert launch_of(name) is None


def test_an_address_has_the_credential_and_the_representation_has_not() -> None:
    uri = KEY.uri("w7-0", "amqp", "127.0.0.1:5672", "a/b")
    assert uri == f"amqp://worker%3Aw7-0:{KEY.password('w7-0')}@127.0.0.1:5672/a%2Fb"
    assert "kkkk" not in repr(KEY)
