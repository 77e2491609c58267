"""What a grammar costs a decode step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvactors.actors import Grammar, InvalidGrammar
from kvactors.bench.regime import ANYWHERE, CannotRun, Regime, Sides
from kvactors.bench.setup import Setup
from kvactors.bench.turns import hot_agents, step

__all__ = ["REGIMES"]


@contextmanager
def guided(setup: Setup) -> Iterator[Sides]:
    """4 agents of 1,000 tokens whose answers have a grammar, a JSON object with a long text,
    against the same agents without one."""
    grammar = _long_object()
    prompts = [setup.prompt(setup.scale.tokens(1000), seed) for seed in range(4)]
    with setup.system(_ending(setup.source)) as system, setup.system() as free:
        agents, others = hot_agents(system, prompts), hot_agents(free, prompts)
        decoded = setup.scale.decoded
        yield (
            lambda: step(system, agents, decoded, grammar),
            lambda: step(free, others, decoded),
        )


def _long_object() -> Grammar:
    """An object that takes longer to say than any measurement. Raises CannotRun without the library
    that it needs."""
    text = {"type": "string", "minLength": 600}
    try:
        return Grammar.json_schema(
            {"type": "object", "properties": {"text": text}, "required": ["text"]}
        )
    except InvalidGrammar as error:
        raise CannotRun(str(error)) from error


def _ending(source: Callable[[], Any]) -> Callable[[], tuple[Any, Any]]:
    """The same model with an end token, which a grammar needs."""

    def load() -> tuple[Any, Any]:
        model, tokenizer = source()
        tokenizer.eos_token_ids = {0}
        return model, tokenizer

    return load


REGIMES = (
    Regime(
        "decode-grammar",
        "the same without a grammar",
        1.05,
        guided,
        holds_on=ANYWHERE,
        differ="a grammar rules tokens out",
    ),
)
