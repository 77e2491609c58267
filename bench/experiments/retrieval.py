"""Remembering against looking up: an agent that was told everything, and one that reads the top
passages again for each question.

    python -m kvactors.bench.experiments.retrieval [--quick] [--plot out.png]

Regime: the default model; held-out worlds of facts, told in turns; then each fact is asked for, and
as much that was never told [paper, 5.2]. Memory: a kvactors agent; questions are taken back, so
that none helps another. Retrieval: passages are the same turns; SQLite's full-text index ranks them
by BM25 with Porter's stems; the best ones and the question are a new prompt for mlx-lm, in a
process of its own, that is prefilled without a cache. The index's own time counts. Medians of
times.
"""

import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from kvactors.actors import Agent, AgentSystem, Sampling
from kvactors.bench.experiments.experiment import Row, begin, figure
from kvactors.bench.experiments.uncached import Turns, uncached
from kvactors.bench.peer_process import in_its_own_process
from kvactors.bench.quality.recall import recalls
from kvactors.core.model.options import DEFAULT_MODEL
from kvactors.core.model.worlds.world import ACKNOWLEDGED, UNKNOWN, World, make_world

__all__ = ["main"]

SEED = 424_242_424
# Facts of a world, and tokens told in all, chatter too.
SIZES = ((10, 256), (20, 1000), (40, 4000))
TOP = (1, 3, 8)
DECODED = 24
Message = dict[str, str]


class Answered(NamedTuple):
    """One question: whether it was told, whether the answer is right, and what that cost."""

    told: bool
    right: bool
    prefilled: int
    first_s: float
    total_s: float


class Passages:
    """What was told, to be found by the words of a question."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._index = sqlite3.connect(":memory:")
        self._index.execute("create virtual table told using fts5(text, tokenize='porter')")
        self._index.executemany("insert into told values (?)", [(text,) for text in texts])

    def best(self, question: str, top: int) -> list[str]:
        """The `top` ones for a `question`, in the order in which they were told."""
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", question))
        found = self._index.execute(
            "select text from told where rowid in (select rowid from told where told match ?"
            " order by rank limit ?) order by rowid",
            (words, top),
        )
        return [text for (text,) in found]

    def close(self) -> None:
        """Let the index go."""
        self._index.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and a JSON line, draw if asked to."""
    run = begin("retrieval", __doc__, arguments, None, "default")
    sizes, tops, worlds = (SIZES[:1], TOP[:1], 1) if run.quick else (SIZES, TOP, 5)
    rows: list[Row] = []
    with AgentSystem("default", store=False) as system:
        ends = sorted(system.chat.eos)
        probe = system.chat.encode("The code of the garage is 4711. " * 100)
        with in_its_own_process(_default, uncached, probe, ends) as theirs:
            for facts, tokens in sizes:
                told = [_world(system, facts, tokens, number) for number in range(worlds)]
                rows.append(_row(facts, tokens, "memory", [_remember(system, w) for w in told]))
                for top in tops:
                    found = [_look_up(system, theirs, world, top) for world in told]
                    rows.append(_row(facts, tokens, f"top {top}", found))
    run.show(f"Facts of {worlds} worlds, asked for one by one.", rows)
    if run.plot is not None:
        figure(run.plot, lambda axes: _draw(axes, rows))
    run.end(rows)


def _default() -> tuple[Any, Any]:
    from mlx_lm.utils import load

    model, tokenizer = load(str(DEFAULT_MODEL))[:2]
    return model, tokenizer


def _world(system: AgentSystem, facts: int, tokens: int, number: int) -> World:
    return make_world(
        np.random.default_rng([SEED, facts, number]),
        facts=facts,
        names="unseen",
        tokens=tokens,
        count_tokens=lambda text: len(system.chat.encode(text)),
    )


def _asked(world: World, ask: Callable[[str], tuple[str, int, float, float]]) -> list[Answered]:
    """Every question of a world; `ask` gives the answer, tokens prefilled, and seconds."""
    questions = [(fact.question, fact.value) for fact in world.facts]
    questions += [(text, UNKNOWN) for text in world.unknown[: len(world.facts)]]
    answers = []
    for question, value in questions:
        text, prefilled, first, total = ask(question)
        right = recalls(text, value)
        answers.append(Answered(value is not UNKNOWN, right, prefilled, first, total))
    return answers


def _remember(system: AgentSystem, world: World) -> list[Answered]:
    agent: Agent = system.spawn("told", world.system)
    for turn in world.turns:
        agent.ask(turn, sampling=Sampling(max_tokens=DECODED)).get()

    def ask(question: str) -> tuple[str, int, float, float]:
        reply = agent.ask(question, sampling=Sampling(max_tokens=DECODED)).get()
        agent.rewind().get()
        timing = reply.timing
        return reply.text, reply.usage.prefilled_tokens, timing.first_token, timing.total

    answers = _asked(world, ask)
    system.forget("told")
    return answers


def _look_up(system: AgentSystem, theirs: Turns, world: World, top: int) -> list[Answered]:
    passages = Passages(world.turns)

    def ask(question: str) -> tuple[str, int, float, float]:
        begun = time.perf_counter()
        messages: list[Message] = []
        if world.system:
            messages.append({"role": "system", "content": world.system})
        for passage in passages.best(question, top):
            messages.append({"role": "user", "content": passage})
            messages.append({"role": "assistant", "content": ACKNOWLEDGED})
        messages.append({"role": "user", "content": question})
        prompt = system.chat.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        tokens = system.chat.encode(prompt)
        before = time.perf_counter() - begun
        turn = theirs(tokens, DECODED)
        text = system.chat.tokenizer.decode(list(turn.tokens))
        return text, len(tokens), before + turn.first_s, before + turn.total_s

    with closing(passages):
        return _asked(world, ask)


def _row(facts: int, tokens: int, how: str, worlds: Sequence[Sequence[Answered]]) -> Row:
    answers = [answer for world in worlds for answer in world]
    return {
        "facts": facts,
        "told_tokens": tokens,
        "how": how,
        "recalled": mean(answer.right for answer in answers if answer.told),
        "refused": mean(answer.right for answer in answers if not answer.told),
        "prefilled": mean(answer.prefilled for answer in answers),
        "first_token_s": median(answer.first_s for answer in answers),
        "turn_s": median(answer.total_s for answer in answers),
        "questions": len(answers),
    }


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    """What is right over what it takes."""
    for how in dict.fromkeys(row["how"] for row in rows):
        same = [row for row in rows if row["how"] == how]
        x, y = [1e3 * row["turn_s"] for row in same], [row["recalled"] for row in same]
        axes.plot(x, y, "o", label=how)
        for row, *place in zip(same, x, y, strict=True):
            axes.annotate(f" {row['facts']} facts", place, fontsize=7)
    axes.set(xlabel="ms a question", ylabel="share recalled", ylim=(0, 1.03), xlim=(0, None))
    axes.legend()


if __name__ == "__main__":
    main()
