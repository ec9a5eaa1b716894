"""Operations that the node carries out as one of its users, by a client within the process (waits).

One client for each call: signed in as the user, used, gone (`own_client`). What is refused comes out as the reply code
of 0-9-1 and its text; what was done before stays done, as for any client. As any client it hears nothing while the node
may not speak.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.server.control.own_client import Denied, Nacked, Outstanding, OwnClient
from clusterbroker.broker.stats import as_user as r
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.broker.wire.amqp091.errors import AmqpError

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ServerPort

TIMEOUT_S: Final = 30.0
TICK_S: Final = 0.5
SPEAK_S: Final = 0.002
GETS_AT_ONCE: Final = 64


async def carried_out(shell: ServerPort, asked: r.AsUser) -> r.Outcome:
    """Raises TimeoutError, EOFError when the node takes no clients."""
    if not shell.accepting:
        raise EOFError
    shell.connections_created += 1
    call = _Call(shell)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await call.carry_out(asked)
    except AmqpError as refused:
        return r.Outcome(int(refused.code), refused.reply_text)
    except Denied as denied:
        return r.Outcome(denied.code, denied.text)
    except Nacked:
        return r.Outcome(nacked=True)
    finally:
        call.client.leave()
        shell.schedule()


class _Call:
    def __init__(self, shell: ServerPort) -> None:
        self._shell = shell
        self.client = OwnClient(shell.node)

    async def carry_out(self, asked: r.AsUser) -> r.Outcome:
        client, got = self.client, list[r.Got]()
        await self._done(client.sign_in, asked.user, asked.vhost, asked.token)
        for request in asked.requests:
            match request:
                case r.Method():
                    await self._done(client.administer, methods.decode(request.payload))
                case r.Publish():
                    await self._done(client.publish, request)
                case r.Ask():
                    await self._done(client.inquire, request)
                case r.Get():
                    await self._get(request, got)
        wait_s = SPEAK_S
        while not self._shell.may_speak:  # contact of a node without clients takes milliseconds, a lease its time
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, TICK_S)
        return r.Outcome(routed=client.routed, got=tuple(got))

    async def _get(self, request: r.Get, got: list[r.Got]) -> None:
        no_ack = request.ack_mode == "ack_requeue_false"
        size = 0
        while len(got) < request.count and size < r.GET_BYTES_MAX:
            one = await self._done(self.client.get, request.queue, no_ack)
            if one is None:
                break
            got.append(one)
            size += len(one.payload)
            if len(got) % GETS_AT_ONCE == 0:
                await asyncio.sleep(0)  # others have their turn
        self.client.settle(requeue=request.ack_mode.endswith("_true"))

    async def _done(self, what: Any, *given: Any) -> Any:
        """What comes of a request of the client; meanwhile it looks for what is late."""
        shell, client = self._shell, self.client
        shell.node.now_ms = shell.clock.now_ms()
        outcome: Outstanding = client.begin(what, *given)
        shell.schedule()
        while not outcome.done():
            await asyncio.wait((outcome,), timeout=TICK_S)
            client.tick(shell.clock.now_ms())
        return outcome.result()
