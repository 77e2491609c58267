"""Whatever agents live through, in any order, each reply is that of an agent alone.

`KVACTORS_FULL=1` runs more and longer lives.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from samples import FULL

from kvactors.actors import AgentNotStored, AgentSystem, Sampling
from kvactors.core.engine.engine import Engine
from kvactors.core.model.load import LoadedModel
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.models import grid

WAIT = 60
ANSWER = Sampling(max_tokens=6)
BUDGET = 12 * 256 * 320
NAMES = st.sampled_from(["a", "b", "c", "d"])
TOKENS = st.lists(st.integers(1, 127), min_size=1, max_size=300)


class Lives(RuleBasedStateMachine):
    """Spawn, ask, fork, rewind, evict, forget, restart, against a plain model of transcripts.

    The oracle is an engine that runs nothing else and has room for everything.
    """

    folder: Path
    oracle: Callable[[list[int]], list[int]]

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, tuple[int, ...]] = {}
        self.store = self.folder / f"store-{id(self)}"
        self.system = self.open()

    def open(self) -> AgentSystem:
        system = AgentSystem(
            grid, self.store, attention="packed", memory_budget=BUDGET, model_name="grid"
        )
        system.start()
        return system

    @rule(name=NAMES)
    def spawn(self, name: str) -> None:
        self.system.spawn(name)

    @rule(name=NAMES, tokens=TOKENS)
    def ask(self, name: str, tokens: list[int]) -> None:
        before = self.known.get(name, ())
        if len(before) + len(tokens) > 1200:
            return
        reply = self.system.spawn(name).ask(tokens, sampling=ANSWER).get(timeout=WAIT)
        assert list(reply.token_ids) == self.oracle([*before, *tokens])
        usage = reply.usage
        assert usage.reused_tokens + usage.prefilled_tokens == len(before) + len(tokens)
        assert (usage.reused_tokens == 0) == (reply.cache == "cold")
        self.known[name] = (*before, *tokens, *reply.token_ids)

    @rule(parent=NAMES, child=NAMES)
    def fork(self, parent: str, child: str) -> None:
        if parent in self.known and child not in self.known:
            if self.system.find(child) is not None:
                self.system.forget(child)
            self.system.spawn(child, from_=parent)
            self.known[child] = self.known[parent]

    @rule(name=NAMES, share=st.floats(0, 1))
    def rewind(self, name: str, share: float) -> None:
        if name in self.known:
            left = int(share * len(self.known[name]))
            self.system.spawn(name).rewind(to_token=left).get(timeout=WAIT)
            self.known[name] = self.known[name][:left]

    @precondition(lambda self: bool(self.known))
    @rule()
    def evict(self) -> None:
        """A stranger with a long prompt takes everybody's place."""
        self.system.wait_idle(WAIT)
        # Answered behind the last save's report to the engine: nothing is dirty any more.
        self.system.stats()
        self.system.spawn("stranger").ask([9] * 800, sampling=ANSWER).get(timeout=WAIT)
        self.system.forget("stranger")
        assert self.system.stats()["hot_agents"] == 0

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        if self.known.pop(name, None) is not None or self.system.find(name) is not None:
            self.system.forget(name)
        with pytest.raises(AgentNotStored):
            self.system.forget(name)

    @precondition(lambda self: bool(self.known))
    @rule()
    def restart(self) -> None:
        self.system.stop(timeout=WAIT)
        self.system = self.open()

    @invariant()
    def everybody_remembers(self) -> None:
        for name, tokens in self.known.items():
            assert self.system.spawn(name).transcript().token_ids == tokens

    @invariant()
    def the_bookkeeping_is_right(self) -> None:
        self.system.check()

    def teardown(self) -> None:
        self.system.stop(timeout=WAIT)


@pytest.mark.slow
def test_lives_in_any_order(
    tmp_path: Path, load_grid: Callable[..., LoadedModel], make_engine: Callable[..., Engine]
) -> None:
    def oracle(tokens: list[int]) -> list[int]:
        request = make_request("alone", [], tokens, ANSWER, stop_tokens=[0])
        return run_engine(make_engine(load_grid()), [(0, request)])["alone"].request.generated

    Lives.folder, Lives.oracle = tmp_path, staticmethod(oracle)
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    Lives.TestCase.settings = settings(
        max_examples=100 if FULL else 8,
        stateful_step_count=30 if FULL else 16,
        suppress_health_check=checks,
    )
    Lives.TestCase().runTest()
