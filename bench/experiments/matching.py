"""Matching a whole conversation with what is remembered, by characters and by tokens, in ms.

    python -m kvactors.bench.experiments.matching [--quick] [--plot out.png]

Regime: the default model and its tokenizer; a conversation of plain facts of 500 to 20,000 tokens
is sent whole, with one more question [write-up, 5.5]. By characters: what kvactors does, comparing
turns and tokenizing what is new. By tokens: all is rendered and tokenized again, and compared with
the ids that are remembered; answers are sampled so hot that some are spelled as no tokenizer would.
Kept: tokens whose KV can stay. First token: of that question, to the agent, and to a new one, to
which all of it is new, as where the match fails. Medians.
"""

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from kvactors.actors import Agent, AgentSystem, Sampling
from kvactors.bench.experiments.experiment import Experiment, Row, begin, figure
from kvactors.bench.setup import FIRST, answer
from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.conversation.prefix_match import match_messages
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.model.worlds.world import make_world

__all__ = ["main"]

TOKENS = (500, 1500, 5000, 20_000)
QUESTION = {"role": "user", "content": "What is the code of the garage?"}
# Hot enough for answers that the tokenizer would spell in other tokens.
SAMPLING = Sampling(max_tokens=24, temperature=1.5)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and a JSON line, draw if asked to."""
    run = begin("matching", __doc__, arguments, None, "default")
    with AgentSystem("default", store=False) as system:
        answer(system.spawn("first"), [1] * 64)
        rows = [_row(run, system, size) for size in run.sizes(TOKENS)]
    run.show("A conversation that is sent whole, with one more question.", rows)
    if run.plot is not None:
        figure(run.plot, lambda axes: _draw(axes, rows))
    run.end(rows)


def _row(run: Experiment, system: AgentSystem, size: int) -> Row:
    agent = system.spawn(f"reader of {size}")
    messages = [*_converse(system, agent, size), QUESTION]
    view = agent.transcript()
    transcript = Transcript(system.chat, "bench")
    transcript.turns = list(view.turns)
    said = [(message["role"], message["content"]) for message in messages]
    draft = match_messages(transcript, said)
    kept = list(accumulate((len(turn.token_ids) for turn in view.turns), initial=0))[draft.keep]
    by_tokens = _ids(system, messages)
    return {
        "tokens": len(view.token_ids),
        "by_characters_s": run.median(_timed(lambda: match_messages(transcript, said))),
        "by_tokens_s": run.median(_timed(lambda: _ids(system, messages))),
        "kept_by_characters": kept,
        "kept_by_tokens": common_prefix(list(view.token_ids), by_tokens),
        "first_token_s": run.median(lambda: _first(agent, messages)),
        "first_token_anew_s": run.median(lambda: _anew(system, messages)),
    }


def _converse(system: AgentSystem, agent: Agent, size: int) -> list[dict[str, str]]:
    """A conversation of about `size` tokens: what is said, and what the agent answers."""
    messages: list[dict[str, str]] = []
    world = 0
    while True:
        made = make_world(np.random.default_rng([size, world]), facts=20, names="invented")
        for said in made.turns:
            reply = agent.ask(said, sampling=SAMPLING).get()
            messages.append({"role": "user", "content": said})
            messages.append({"role": "assistant", "content": reply.text})
            if reply.usage.prompt_tokens + reply.usage.generated_tokens >= size:
                return messages
        world += 1


def _ids(system: AgentSystem, messages: Sequence[dict[str, str]]) -> list[int]:
    """All of it, rendered and tokenized again."""
    rendered = system.chat.tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=True
    )
    return system.chat.encode(rendered)


def _timed(act: Callable[[], object]) -> Callable[[], float]:
    def once() -> float:
        begun = time.perf_counter()
        act()
        return time.perf_counter() - begun

    return once


def _first(agent: Agent, messages: Sequence[dict[str, str]]) -> float:
    reply = agent.ask(messages=list(messages), sampling=FIRST).get()
    agent.rewind().get()
    assert reply.match == "extend"
    return float(reply.timing.first_token)


def _anew(system: AgentSystem, messages: Sequence[dict[str, str]]) -> float:
    reply = system.spawn("new").ask(messages=list(messages), sampling=FIRST).get()
    system.forget("new")
    return float(reply.timing.first_token)


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    for name in ("by_characters_s", "by_tokens_s", "first_token_s", "first_token_anew_s"):
        label = name.removesuffix("_s").replace("_", " ")
        tokens = [row["tokens"] for row in rows]
        axes.plot(tokens, [1e3 * row[name] for row in rows], marker="o", label=label)
    axes.set(xscale="log", yscale="log", xlabel="tokens remembered", ylabel="ms")
    axes.legend()


if __name__ == "__main__":
    main()
