"""The turns of the agents that a node serves. On its loop."""

from collections.abc import Callable
from typing import Any

from kvactors.actors.agents.handle import Agent
from kvactors.actors.cluster.host.answers import plain_logprobs
from kvactors.actors.cluster.host.saved import SavedKV
from kvactors.actors.cluster.host.whole_turns import read_turn
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.system.system import AgentSystem
from kvactors.actors.turns.options import TurnOptions, check_options, withdrawing
from kvactors.actors.turns.reply import Reply, Rewound
from kvactors.actors.turns.stream import AsyncReplyStream
from kvactors.core.errors import InvalidInput

__all__ = ["ServedTurns", "Tell"]

Tell = Callable[[Record], object]


class ServedTurns:
    """Turns of the agents that are in memory of `system`; `saved` follows what becomes of their
    KV."""

    def __init__(self, system: AgentSystem, saved: SavedKV) -> None:
        self._system = system
        self._saved = saved

    def require_none(self, agent: str) -> None:
        """Raise InvalidInput if it is served: what is in memory would not be what is stored."""
        if self._system.find(agent) is not None:
            raise InvalidInput(f"agent {agent!r} is served here: end it before it is written below")

    def ids(self) -> list[str]:
        """Of all that are served. Any thread."""
        return [agent.agent_id for agent in self._system.agents()]

    def asked(self, agent: str, kind: str, given: dict[str, Any]) -> ReplyFuture[Reply]:
        """Put a turn of this `kind`, "ask", "observe", "turn" or "withdraw", into the lane of
        `agent`, with the parameters that are `given`. Raises InvalidInput unless it is served, and
        as its method."""
        handle = self._handle(agent)
        if kind == "withdraw":
            return handle.open_turn(withdrawing(given["request_id"])).reply
        if kind == "turn":
            future = handle.open_turn(read_turn(self._system.info, given)).reply
        else:
            future = handle.observe(**given) if kind == "observe" else handle.ask(**given)
        self._saved.follow(agent, given["request_id"], future)
        return future

    def rewound(self, agent: str, given: dict[str, Any]) -> ReplyFuture[Rewound]:
        """Let `agent` rewind as is `given`. Raises as `asked`."""
        return self._handle(agent).rewind(**given)

    def cancel(self, agent: str) -> None:
        """End the turn that runs. Raises InvalidInput unless it is served."""
        self._handle(agent).cancel()

    async def streamed(self, agent: str, kind: str, given: dict[str, Any], tell: Tell) -> Reply:
        """The reply of a turn of `agent`, of this `kind`, "ask" or "turn", with the parameters that
        are `given`; `tell` has how much of its prompt is known, then its tokens and text as they
        come. Raises as `asked`, and what the turn fails with."""
        handle = self._handle(agent)
        options = self._options(kind, given)
        ticket = handle.open_turn(options)
        self._saved.follow(agent, given["request_id"], ticket.reply)
        assert ticket.admitted is not None
        if (begun := await ticket.admitted) is not None:
            tell({"begun": [begun.prompt, begun.kept]})
        # Nobody's leaving cancels it: half an answer under its id would be all there ever is.
        async for piece in AsyncReplyStream(ticket, options.sampling.stop, _go_on):
            scored = {"logprobs": plain_logprobs(piece.logprobs)} if piece.logprobs else {}
            tell({"tokens": list(piece.token_ids), "text": piece.text, **scored})
        reply: Reply = await ticket.reply
        return reply

    def _options(self, kind: str, given: dict[str, Any]) -> TurnOptions:
        model = self._system.info
        if kind == "turn":
            return read_turn(model, given)
        named = {name: value for name, value in given.items() if name != "prompt"}
        return check_options(model, given.get("prompt"), **named)

    def _handle(self, agent: str) -> Agent:
        handle = self._system.find(agent)
        if handle is None:
            raise InvalidInput(f"agent {agent!r} is not served here: begin it first")
        return handle


def _go_on() -> None:
    """The turn ends when it ends."""
