"""An engine that is stepped by hand, for tests. GPU thread only."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from kvactors.core.cache.segment import Segment
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.engine.engine import Engine
from kvactors.core.schedule.events import Aborted, Finished, KVNeeded
from kvactors.core.schedule.guide import Guide
from kvactors.core.schedule.request import Request, StopMatcher
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.models import PlainTokenizer

__all__ = ["make_request", "run_engine"]

PLAIN = ChatFormat(PlainTokenizer())


def make_request(
    agent_id: str,
    known: Sequence[int],
    new: Sequence[int],
    sampling: Sampling,
    *,
    turn: int = 0,
    serial: int = 0,
    answer: bool = True,
    stop_tokens: Iterable[int] = (),
) -> Request:
    """A turn, number `turn`, of `agent_id` that adds the tokens `new` to the `known` ones, for an
    engine without actors. `sampling` and `stop_tokens` say how it ends, `answer` whether it
    decodes; `serial` names it. A grammar is over the tokens of a PlainTokenizer."""
    tokens = [*known, *new]
    return Request(
        agent_id=agent_id,
        turn=turn,
        tokens=tokens,
        prompt=len(tokens),
        sampling=sampling,
        generate=answer,
        stop_tokens=frozenset(stop_tokens),
        matcher=StopMatcher(sampling.stop, PlainTokenizer().decode),
        fresh=len(new),
        serial=serial,
        guide=Guide(PLAIN.grammar_tokens(128), sampling.grammar, sampling.max_tokens)
        if sampling.grammar is not None and answer
        else None,
    )


def run_engine(
    engine: Engine,
    arrivals: Iterable[tuple[int, Request]],
    on_step: Callable[[int], None] | None = None,
    stored: Mapping[str, Sequence[Segment]] | None = None,
) -> dict[str, Finished]:
    """Submit the requests of `arrivals`, (step number, request), to `engine` and run until idle;
    the end of each agent's turn. Raises the error of a turn that failed. What it asks the store
    for is what is `stored` of each agent.

    Checks the engine's bookkeeping after every step. `on_step` may cancel between steps.
    """
    waiting = sorted(arrivals, key=lambda pair: pair[0])
    ended: dict[str, Finished] = {}
    step = 0
    while waiting or engine.busy:
        while waiting and waiting[0][0] <= step:
            engine.submit(waiting.pop(0)[1])
        if on_step is not None:
            on_step(step)
        for event in engine.step():
            if isinstance(event, Finished):
                ended[event.request.agent_id] = event
            elif isinstance(event, Aborted):
                raise event.error
            elif isinstance(event, KVNeeded):
                engine.provide(event.agent_id, (stored or {}).get(event.agent_id, ()))
        engine.check()
        step += 1
    return ended
