"""A sweep holds what its runs have in common once."""

from collections.abc import Callable
from pathlib import Path

from puppet_talk import TALK

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.journal.records import Run
from kvactors.actors.scenarios.scenario import Scenario
from kvactors.actors.testing import FaultyModel

Write = Callable[..., Path]

SEEDS = 4


def prefilled(runs: list[Run]) -> int:
    """Tokens of turns, and of what was heard."""
    said = sum(turn.prefilled_tokens for run in runs for turn in run.turns)
    return said + sum(heard.prefilled_tokens for run in runs for heard in run.heard)


def test_a_beginning_that_seeds_share_is_prefilled_once(write: Write, tmp_path: Path) -> None:
    persona = "You are Anna. " + "The code of the garage is 4711. " * 20
    text = TALK.replace("You are Anna.", persona).replace(
        "bob: {}", f'bob: {{persona: "{persona}"}}'
    )

    def runs(seeds: str) -> list[Run]:
        scenario = Scenario.load(write(text), settings=[f"seeds={seeds}"])
        with AgentSystem(FaultyModel(), tmp_path / f"store-{seeds}") as system:
            return scenario.run(system, out=tmp_path / f"out-{seeds}")

    together = runs(f"1..{SEEDS}")
    alone = [run for seed in range(1, SEEDS + 1) for run in runs(str(seed))]

    assert [run.header.seed for run in together] == [run.header.seed for run in alone]
    assert 600 < min(turn.prompt_tokens for run in alone for turn in run.turns) < 900
    assert prefilled(together) <= 0.5 * prefilled(alone)
