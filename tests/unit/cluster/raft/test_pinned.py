"""What importing the Raft library must not do to the process."""

from __future__ import annotations

import socket

import clusterbroker.cluster.raft.pinned  # noqa: F401  (its import is what is tested)


def test_the_socket_module_is_as_it_was() -> None:
    assert socket.inet_ntop(socket.AF_INET, b"\x7f\0\0\1") == "127.0.0.1"
