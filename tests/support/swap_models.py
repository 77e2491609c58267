"""Models of different tokenizers to swap between, and how agents under them are asked."""

import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from small_tokenizers import build, chat_format

from kvactors.actors import Agent, AgentSystem, Reply, Sampling
from kvactors.core.testing.models import Faulty, snap_to_grid, tiny_model

WAIT = 60
ANSWER = Sampling(max_tokens=6)
STORY = "He said: be calm! Hello world, hello again. " * 12


class Grid:
    """A grid model with one of the small tokenizers. `memory`: what MLX held when it was asked
    for, each time."""

    def __init__(self, algorithm: str, template: str = "chatml", seed: int = 1) -> None:
        self.name = f"{algorithm} {template} {seed}"
        self.algorithm, self.template, self.seed = algorithm, template, seed
        self.memory: list[int] = []

    def __call__(self) -> tuple[Any, Any]:
        self.memory.append(mx.get_active_memory())
        model = tiny_model(seed=self.seed, vocab_size=build(self.algorithm).get_vocab_size())
        return snap_to_grid(model), chat_format(self.algorithm, self.template).tokenizer


class Held(Grid):
    """A grid model whose steps can be held at a gate."""

    def __init__(self) -> None:
        super().__init__("bytes")
        self.gate = threading.Event()
        self.model: Any = None

    def __call__(self) -> tuple[Any, Any]:
        model, tokenizer = super().__call__()
        self.model = Faulty(model)
        return self.model, tokenizer

    def hold(self) -> None:
        self.model.arm(hold=self.gate)


FIRST, SECOND = Grid("bytes"), Grid("unigram", "default system", seed=2)


def ask(agent: Agent, text: Any = "Hello", sampling: Sampling = ANSWER) -> Reply:
    """One turn, waited for, KV on disk."""
    reply: Reply = agent.ask(text, sampling=sampling).get(timeout=WAIT)
    reply.cached.get(timeout=WAIT)
    return reply


def computed_alone(system: AgentSystem, agent: Agent, reply: Reply) -> bool:
    """Whether an agent that is told all of it at once, as token ids, answers the same."""
    tokens = list(agent.transcript().token_ids)
    assert tokens[len(tokens) - len(reply.token_ids) :] == list(reply.token_ids)
    alone = system.spawn("alone")
    try:
        prompt = tokens[: len(tokens) - len(reply.token_ids)]
        return ask(alone, prompt).token_ids == reply.token_ids
    finally:
        system.forget("alone")


def swapping(system: AgentSystem, model: Any, **options: Any) -> "Background":
    return Background(lambda: system.swap_model(model, **options))


class Background:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            self.error = error

    def end(self) -> BaseException | None:
        """What it raised, once it has ended."""
        self._thread.join(WAIT)
        assert not self._thread.is_alive()
        return self.error
