"""A node that is alone starts, serves and stops without the modules of a member."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ALONE = """
import asyncio, sys
from pathlib import Path
from clusterbroker.broker.server.listener import Address
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.server.options import ServerOptions
from clusterbroker.broker.server.shell import NodeShell

async def live():
    where = ServerOptions(data_dir=Path(sys.argv[1]), amqp=(Address("127.0.0.1", 0),), management=True)
    shell = NodeShell(where, NodeLog(lambda *_: None))
    await shell.start()
    await shell.stop()

asyncio.run(live())
print([name for name in sys.modules if name.startswith("clusterbroker.broker.server.member")])
"""


def test_a_node_that_is_alone_imports_nothing_of_a_member(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
