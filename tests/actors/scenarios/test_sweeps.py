"""A sweep holds what its runs have in common once; what is wrong with one is no other's end."""

from collections.abc import Callable
from pathlib import Path

import pytest
from puppet_talk import TALK, open_system

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.journal.reading import read_run
from kvactors.actors.scenarios.journal.records import Run
from kvactors.actors.scenarios.scenario import Scenario, resume_run
from kvactors.actors.testing import FaultyModel

Write = Callable[..., Path]

SEEDS = 4


def prefilled(runs: list[Run]) -> int:
    """Tokens of turns, and of what was heard."""
    said = sum(turn.prefilled_tokens for run in runs for turn in run.turns)
    return said + sum(heard.prefilled_tokens for run in runs for heard in run.heard)


@pytest.mark.slow
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


# Seed 2 fails as it begins, seed 3 behind an answer.
PLACE = "9 if seed == 2 else round if seed == 3 else 0"
WRONG = TALK.replace("rounds: 2", f"rounds: 2\n    until: answers('first', 'anna')[{PLACE}] == ''")


def test_what_is_wrong_with_a_run_is_no_end_of_those_beside_it(
    write: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    scenario = Scenario.load(write(WRONG), settings=["seeds=1..5"])

    with open_system(tmp_path / "store") as system:
        with pytest.raises(InvalidScenario, match=r"seed-2 has not ended: .*1 runs more"):
            scenario.run(system, out=out)
        with pytest.raises(InvalidScenario, match=r"seed-2 has not ended: .*1 runs more"):
            resume_run(out, system)

    ended = [seed for seed in range(1, 6) if read_run(out / f"runs/seed-{seed}.journal").ended]
    assert ended == [1, 4, 5]
    assert "seed-5" in (out / "metrics.csv").read_text()
