"""Regimes of the default model with its draft model: answers to what is asked once, of memory.

What others said is left out (strict isolation), so that nothing but the draft model, and what the
agent itself said, can be right.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kvactors.actors import AgentSystem, DraftModel, Sampling
from kvactors.bench import peers
from kvactors.bench.peer_process import in_its_own_process
from kvactors.bench.regime import Regime, Side, Sides, in_turn
from kvactors.bench.setup import Setup
from kvactors.core.model.options import DEFAULT_MODEL, DRAFT_MODEL
from kvactors.core.model.worlds.world import World, make_world

__all__ = ["REGIMES"]

FACTS, WORLDS = 12, 4
ANSWER = Sampling(max_tokens=32)
WARM_UP = "Hello."
# Drafted tokens of the peer: its own default, and more; the fastest is taken.
LENGTHS = (2, 4, 6)
END = 2  # the default model's


def default_model() -> tuple[Any, Any]:
    """The default model, as mlx-lm loads it."""
    from mlx_lm import load

    model, tokenizer = load(str(DEFAULT_MODEL))[:2]
    return model, tokenizer


def _worlds(setup: Setup, seed: int) -> list[World]:
    rng = np.random.default_rng([11, seed])
    return [
        make_world(rng, facts=FACTS, names="seen")
        for _ in range(max(1, WORLDS // setup.scale.fewer))
    ]


def _asked(setup: Setup, system: AgentSystem, seed: int) -> Side:
    """Tokens a second of one agent after the other, each asked about its own facts."""
    tokens, seconds = list[int](), 0.0
    for number, world in enumerate(_worlds(setup, seed)):
        agent = system.spawn(f"{seed}.{number}", system_prompt=" ".join(world.turns))
        agent.ask(WARM_UP, sampling=ANSWER).get()
        begin = time.perf_counter()
        for fact in world.facts:
            tokens += agent.ask(fact.question, sampling=ANSWER).get().token_ids
        seconds += time.perf_counter() - begin
        system.forget(agent.agent_id)
    return Side(len(tokens) / seconds, tokens)


@contextmanager
def _drafted(setup: Setup) -> Iterator[Sides]:
    """Tokens a second of one agent of the default model, asked about its facts, turn by turn, the
    prompts' prefills included, with the draft model against without drafts."""
    with (
        AgentSystem(store=False, isolation="strict", speculation=DraftModel()) as ours,
        AgentSystem(store=False, isolation="strict", speculation="off") as theirs,
    ):
        _asked(setup, ours, 1000)
        _asked(setup, theirs, 1000)
        yield (
            in_turn(lambda seed: _asked(setup, ours, seed)),
            in_turn(lambda seed: _asked(setup, theirs, seed)),
        )


def peer_answers(model: Any) -> Callable[[Sequence[Sequence[Sequence[int]]]], Any]:
    """Seconds and tokens of mlx-lm's speculative generation with `model` and its draft model, over
    float caches that stay from turn to turn, for worlds: of each, the tokens of its turns, the
    first of which is not timed. It drafts as many tokens as were fastest in the first run."""
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.generate import speculative_generate_step
    from mlx_lm.models.cache import make_prompt_cache

    draft = load(str(DRAFT_MODEL))[0]
    draft.set_dtype(mx.float32)
    mx.eval(draft.parameters())
    best: list[int] = []

    def answer(held: list[int], cache: list[Any], length: int) -> list[int]:
        # Both caches stand behind the same tokens.
        least = min(layer.offset for layer in cache)
        for layer in cache:
            layer.trim(layer.offset - least)
        said = list[int]()
        steps = speculative_generate_step(
            mx.array(held[least:]),
            model,
            draft,
            num_draft_tokens=length,
            max_tokens=ANSWER.max_tokens,
            prompt_cache=cache,
        )
        for token, *_ in steps:
            said.append(int(token))
            if said[-1] == END:
                break
        steps.close()
        return said

    def once(worlds: Sequence[Sequence[Sequence[int]]], length: int) -> tuple[float, list[int]]:
        seconds, tokens = 0.0, list[int]()
        for turns in worlds:
            cache = [*make_prompt_cache(model), *make_prompt_cache(draft)]
            held = list(turns[0])
            held += answer(held, cache, length)
            begin = time.perf_counter()
            for turn in turns[1:]:
                held += turn
                said = answer(held, cache, length)
                held += said
                tokens += said
            seconds += time.perf_counter() - begin
        return seconds, tokens

    def run(worlds: Sequence[Sequence[Sequence[int]]]) -> tuple[float, list[int]]:
        if not best:
            best.append(peers.fastest(LENGTHS, lambda length: once(worlds, length)[0]))
        return once(worlds, best[0])

    return run


def _turns(world: World, encode: Callable[[str], list[int]]) -> list[list[int]]:
    """The tokens of each turn of an agent that is told a world and asked about it."""
    told = f"<s><|system|>{' '.join(world.turns)}<|end|>"
    asked = [WARM_UP, *(fact.question for fact in world.facts)]
    turns = [f"<|user|>{text}<|end|><|assistant|>" for text in asked]
    return [encode(told + turns[0]), *map(encode, turns[1:])]


@contextmanager
def _against_peer(setup: Setup) -> Iterator[Sides]:
    """Tokens a second of one agent of the default model with its draft model, asked about its
    facts, turn by turn, its memory stored, against mlx-lm's speculative generation with the same
    pair of models, in its own process, over float caches that stay from turn to turn."""
    encode = setup.load(default_model).chat.encode
    with (
        TemporaryDirectory() as store,
        AgentSystem(
            store=store, isolation="strict", kv_bits=setup.kv_bits, speculation=DraftModel()
        ) as ours,
        in_its_own_process(default_model, peer_answers) as peer,
    ):

        def theirs(seed: int) -> Side:
            worlds = [_turns(world, encode) for world in _worlds(setup, seed)]
            seconds, tokens = peer(worlds)
            return Side(len(tokens) / seconds, tokens)

        _asked(setup, ours, 1000)
        theirs(1000)
        yield in_turn(lambda seed: _asked(setup, ours, seed)), in_turn(theirs)


def _regime(
    name: str,
    against: str,
    target: float,
    measure: Callable[[Setup], AbstractContextManager[Sides]],
    differ: str,
) -> Regime:
    return Regime(name, against, target, measure, "higher", "tokens/s", differ=differ)


REGIMES = (
    _regime(
        "draft-answers", "without guesses", 1.3, _drafted, "a near-tie of floats may fall otherwise"
    ),
    _regime(
        "draft-peer", "mlx-lm with a draft model", 1.2, _against_peer, "4 bits here, floats there"
    ),
)
