"""Regimes of speculation: tokens a second with it, against without, of one engine each.

What the turns say is given (a puppet's answer), on a random model: so that texts of each kind can
be decoded by the same weights, and both sides say the same. Prompts are prefilled before.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from time import perf_counter

import numpy as np

import kvactors.bench.regime as regimes
import kvactors.core.engine.engine as code
from kvactors.actors import AgentSystem, Sampling
from kvactors.bench.regime import Regime, Side, Sides, in_turn
from kvactors.bench.setup import Setup
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.model.options import DEFAULT_MODEL
from kvactors.core.model.worlds.world import make_world
from kvactors.core.schedule.events import Finished
from kvactors.core.schedule.speculation.speculation import SpeculationConfig
from kvactors.core.testing.engines import make_request

__all__ = ["REGIMES"]

PROMPT, SAID = 1000, 200
BUDGET = 8 << 30
FACTS = 16

# A prompt, and what is said to it.
Talk = tuple[list[int], list[int]]


def copied(setup: Setup, seed: int) -> Talk:
    """200 tokens of a random prompt of 1,000, said again"""
    prompt = setup.prompt(setup.scale.tokens(PROMPT), seed)
    said = setup.scale.tokens(SAID)
    begin = (len(prompt) - said) // 2
    return prompt, prompt[begin : begin + said]


def rewritten(setup: Setup, seed: int) -> Talk:
    """a file of source code, said again with one line in eight changed"""
    lines = _source(seed).splitlines(keepends=True)
    changed = [line.replace("self", "me") if n % 8 == 3 else line for n, line in enumerate(lines)]
    said = _ids("".join(changed))[: setup.scale.tokens(SAID)]
    return _ids(_source(seed))[: setup.scale.tokens(PROMPT)], said


def written(setup: Setup, seed: int) -> Talk:
    """what follows in a file of source code behind its first 1,000 tokens"""
    return _parted(setup, _ids(_source(seed)))


def told(setup: Setup, seed: int) -> Talk:
    """what follows in documentation behind its first 1,000 tokens"""
    return _parted(setup, _ids(_prose(seed)))


def never(setup: Setup, seed: int) -> Talk:
    """tokens of which every second one stood before, and another one follows each time"""
    rng = np.random.default_rng([seed, 7])
    half = setup.scale.tokens(PROMPT) // 2
    fresh = rng.permutation(np.arange(100, 100 + 2 * half)).tolist()
    ids = [token for pair in zip([7] * len(fresh), fresh, strict=True) for token in pair]
    return ids[: 2 * half], ids[2 * half : 2 * half + setup.scale.tokens(SAID)]


def _parted(setup: Setup, ids: list[int]) -> Talk:
    prompt, said = setup.scale.tokens(PROMPT), setup.scale.tokens(SAID)
    return ids[:prompt], ids[prompt : prompt + said]


def _source(seed: int) -> str:
    """Source code: files of ours, from another one on for each seed."""
    files = sorted(Path(code.__file__).parents[1].rglob("*.py"))
    turned = files[seed % len(files) :] + files[: seed % len(files)]
    return "".join(path.read_text(encoding="utf-8") for path in turned[:6])


def _prose(seed: int) -> str:
    """Documentation: docstrings of ours, from another one on for each seed."""
    files = sorted(Path(regimes.__file__).parent.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8").split('"""')[1::2] for path in files]
    words = [" ".join(" ".join(found).split()) for found in texts]
    turned = words[seed % len(words) :] + words[: seed % len(words)]
    return " ".join(turned)


@lru_cache(1)
def _chat() -> Callable[[str], list[int]]:
    from kvactors.core.model.load import load_model
    from kvactors.core.model.options import ModelOptions

    return load_model(DEFAULT_MODEL, ModelOptions()).chat.encode


def _ids(text: str) -> list[int]:
    """Tokens of the default model's tokenizer, whose ids the random model has too."""
    return _chat()(text)


class _Rows:
    """An engine, and turns that say what they are given, all at once. Prompts stay in memory."""

    def __init__(self, setup: Setup, talks: Sequence[Talk], *, guesses: bool) -> None:
        speculation = SpeculationConfig(share=False) if guesses else None
        config = EngineConfig(len(talks), BUDGET, stored=False, speculation=speculation)
        self._engine = Engine(setup.loaded, config)
        self._talks = talks
        # Prompts are read one after the other: what the first says would be over before the last
        # one speaks.
        self._submit(1)
        self._ends()

    def _submit(self, tokens: int) -> None:
        """Let each turn begin, of at most so many tokens."""
        for row, (prompt, said) in enumerate(self._talks):
            form = Sampling(max_tokens=min(tokens, len(said)))
            request = make_request(f"{row:02}", [], prompt, form)
            request.told = tuple(said)
            self._engine.submit(request)

    def _ends(self) -> list[Finished]:
        """The ends of all turns, when they are there."""
        ends = list[Finished]()
        while len(ends) < len(self._talks):
            ends += [event for event in self._engine.step() if isinstance(event, Finished)]
        return ends

    def run(self) -> Side:
        """Tokens a second, from when all rows decode to the last one's end."""
        engine = self._engine
        self._submit(SAID)
        while engine.stats()["decoding"] < len(self._talks):
            if any(isinstance(event, Finished) for event in engine.step()):
                raise RuntimeError("a turn was over before all of them decoded")
        begin, before = perf_counter(), engine.stats()["generated_tokens"]
        ends = self._ends()
        seconds = perf_counter() - begin
        decoded = engine.stats()["generated_tokens"] - before
        spoken = {end.request.agent_id: end.request.generated for end in ends}
        return Side(decoded / seconds, [t for name in sorted(spoken) for t in spoken[name]])


def _against_plain(
    talk: Callable[[Setup, int], Talk], rows: int
) -> Callable[[Setup], AbstractContextManager[Sides]]:
    """What a regime measures: `rows` turns that `talk` makes."""

    @contextmanager
    def measured(setup: Setup) -> Iterator[Sides]:
        talks = [talk(setup, seed) for seed in range(rows)]
        ours = _Rows(setup, talks, guesses=True)
        theirs = _Rows(setup, talks, guesses=False)
        # What is learned of drafts and of their cost stays.
        ours.run()
        yield ours.run, theirs.run

    measured.__doc__ = (
        f"Tokens a second of {rows} turns with speculation, against the same without: "
        f"{talk.__doc__}."
    )
    return measured


def _worlds(rows: int) -> Callable[[Setup], AbstractContextManager[Sides]]:
    """What a regime measures: agents of the default model that are asked about their worlds."""

    def asked(setup: Setup, system: AgentSystem, seed: int) -> Side:
        rng = np.random.default_rng([11, seed])
        worlds = [make_world(rng, facts=FACTS, names="seen") for _ in range(rows)]
        agents = [system.spawn(f"{number}") for number in range(rows)]
        for agent, world in zip(agents, worlds, strict=True):
            agent.observe(" ".join(world.turns)).get()
        begin, tokens = perf_counter(), list[int]()
        for fact in range(max(2, FACTS // setup.scale.fewer)):
            futures = [
                agent.ask(world.facts[fact].question)
                for agent, world in zip(agents, worlds, strict=True)
            ]
            tokens += [token for future in futures for token in future.get().token_ids]
        seconds = perf_counter() - begin
        for agent in agents:
            system.forget(agent.agent_id)
        return Side(len(tokens) / seconds, tokens)

    @contextmanager
    def measured(setup: Setup) -> Iterator[Sides]:
        with (
            AgentSystem(store=False) as ours,
            AgentSystem(store=False, speculation="off") as theirs,
        ):
            asked(setup, ours, 1000)
            asked(setup, theirs, 1000)
            yield (
                in_turn(lambda seed: asked(setup, ours, seed)),
                in_turn(lambda seed: asked(setup, theirs, seed)),
            )

    measured.__doc__ = (
        f"Tokens a second of {rows} agents of the default model, each asked about its own facts, "
        "others in each run, turn by turn, the prompts' prefills included, with speculation "
        "against without."
    )
    return measured


TARGETS = {
    "copy": (copied, (4.0, 2.4, 1.6)),
    "rewrite": (rewritten, (3.2, 2.0, 1.5)),
    "code": (written, (1.2, 1.1, 1.0)),
    "prose": (told, (0.98, 0.98, 0.98)),
    "never": (never, (0.98, 0.98, 0.98)),
}
ROWS = (1, 4, 16)
REGIMES = (
    *(
        Regime(
            f"guess-{name}-{rows}",
            "without guesses",
            target,
            _against_plain(talk, rows),
            "higher",
            "tokens/s",
        )
        for name, (talk, targets) in TARGETS.items()
        for rows, target in zip(ROWS, targets, strict=True)
    ),
    *(
        Regime(
            f"guess-worlds-{rows}",
            "without guesses",
            target,
            _worlds(rows),
            "higher",
            "tokens/s",
            differ="a near-tie of floats may fall otherwise",
        )
        for rows, target in zip(ROWS, (1.3, 1.1, 1.0), strict=True)
    ),
)
