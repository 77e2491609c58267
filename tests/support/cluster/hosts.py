"""Two nodes' agents in one process: what one host gives reaches the other as plain bytes."""

import asyncio
import threading
from typing import Any

from kvactors.actors import Sampling
from kvactors.actors.cluster.host.host import SystemHost
from kvactors.actors.cluster.host.requests import ask_request
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.wire import pack, unpack
from kvactors.actors.testing import FaultyModel

__all__ = ["LONG", "SHORT", "across", "asked", "copied", "held", "said"]

WAIT = 60
SHORT = Sampling(max_tokens=6)
LONG = [(7 * n) % 120 + 1 for n in range(300)]


def across(record: Any) -> dict[str, Any]:
    """A record as it arrives."""
    return unpack(pack(record))


async def asked(
    host: SystemHost, agent: str, prompt: Any, request_id: str, **options: Any
) -> dict[str, Any]:
    """A turn of an agent that is served; its answer as it arrives."""
    options.setdefault("sampling", SHORT)
    request = ask_request(prompt, request_id=request_id, **options)
    return across(await host.turn(agent, across(request), None))


async def held(
    host: SystemHost, model: FaultyModel, *, streamed: bool
) -> tuple[asyncio.Task[Record], threading.Event]:
    """The request r1 of alice, in the middle of it, and what lets its `model` go on. One that is
    `streamed` has been told of."""
    gate, told = model.hold(), asyncio.Event()
    request = ask_request([1, 2], request_id="r1", sampling=SHORT)
    tell = (lambda _: told.set()) if streamed else None
    task = asyncio.create_task(host.turn("alice", request, tell))
    await asyncio.to_thread(model.reached.wait, WAIT)
    if streamed:
        # That its prompt is known is told behind the step that reads it: the next one is held.
        first, gate = gate, model.hold()
        first.set()
        await asyncio.wait_for(told.wait(), WAIT)
    return task, gate


async def copied(source: SystemHost, target: SystemHost, agent: str) -> tuple[int, int]:
    """Bring `target` all that `source` has of an agent; how many records and pieces that were."""
    start = (await target.stored()).get(agent, 0)
    records = await source.records(agent, start)
    await target.store(agent, start, across({"records": records})["records"])
    pieces = 0
    async for piece in source.pieces(agent, await target.digests(agent)):
        await target.store_piece(agent, across(piece))
        pieces += 1
    return len(records), pieces


def said(answer: dict[str, Any]) -> tuple[Any, ...]:
    """What two nodes must agree on."""
    return answer["text"], answer["tokens"], answer["finish"]
