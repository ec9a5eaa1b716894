"""Seeded worlds of proxies and an owner; a longer run: python -m tests.property.test_proxy_world SEEDS [FIRST]."""

from __future__ import annotations

import sys

import pytest

from tests.budget import campaign
from tests.property.proxy_world import World

pytestmark = pytest.mark.campaign


def test_whatever_breaks_each_message_has_one_life() -> None:
    campaign("proxies", lambda seed: World(seed).run(1500), "python -m tests.property.test_proxy_world 1")


if __name__ == "__main__":
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    messages = 0
    for seed in range(first, first + int(sys.argv[1])):
        world = World(seed)
        try:
            world.run(1500)
        except AssertionError:
            print(f"seed {seed}, step {world.count}")
            raise
        messages += len(world.acked)
    print(f"{sys.argv[1]} seeds, {messages} messages: each had one life")
