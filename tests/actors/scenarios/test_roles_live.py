"""Runs with code of somebody's own and a system of agents: replayed, resumed, forked.

`KVACTORS_FULL=1`: a crowd of 500, of whom half raises.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from talks import DEALERS, own

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.scenario import Scenario, fork_run, replay_run, resume_run
from kvactors.actors.testing import FaultyModel

Write = Callable[..., Path]

FULL = bool(os.environ.get("KVACTORS_FULL"))


@pytest.fixture
def system(tmp_path: Path) -> Iterator[AgentSystem]:
    """A small random model."""
    with AgentSystem(FaultyModel(), tmp_path / "store", deterministic=True) as opened:
        yield opened


FORKED = DEALERS.replace("name: dealers", "name: dealers\nsampling: {max_tokens: 4}").replace(
    "  - name: end\n", "  - name: end\n    fork: {left: {}, right: {}}\n"
)
LABEL = "runs/seed-0.journal"


def test_a_run_with_code_is_replayed_forked_and_gone_on_with(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    [whole] = Scenario.load(write(FORKED)).run(system, out=tmp_path / "out")
    path = tmp_path / "out" / LABEL
    written = path.read_bytes()
    assert [said.split(":")[0] for said in own(whole)] == ["1", "2", "3", "3"]
    assert not whole.failures

    replay_run(tmp_path / "out", tmp_path / "again")
    assert (tmp_path / "again" / LABEL).read_bytes() == written

    for kept in range(len(written) - 1, len(written) // 2, -701):
        path.write_bytes(written[:kept])
        [run] = resume_run(tmp_path / "out", system)
        assert untimed_of_memory(run) == untimed_of_memory(whole)

    step = [turn.step for turn in whole.turns if turn.agent == "anna" and not turn.part][1]
    [fork] = fork_run(tmp_path / "out", step, tmp_path / "fork", system=system)
    assert [turn.answer for turn in fork.turns] == [turn.answer for turn in whole.turns]


def untimed_of_memory(run: Any) -> list[Any]:
    """What is the same wherever a process began."""
    return [
        (turn.step, turn.part, turn.prompt, turn.answer, turn.memory, turn.heard)
        for turn in run.turns
    ]


def test_a_steps_sampling_is_that_of_what_its_agent_thinks_and_not_of_whom_it_asks(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    say = '- say: "Speak, {{ round }}."\n'
    text = FORKED.replace(say, say + "        sampling: {max_tokens: 2}\n")

    [run] = Scenario.load(write(text)).run(system, out=tmp_path / "out")

    parts = [turn for turn in run.turns if turn.part and turn.phase == "talk"]
    assert {(turn.agent, turn.generated_tokens) for turn in parts} == {("anna", 2), ("bob", 4)}


def test_code_that_says_otherwise_by_now_is_named_with_its_step(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    text = FORKED.replace(":Dealer", ":Wise")
    Scenario.load(write(text)).run(system, out=tmp_path / "out")
    file = tmp_path / "out/scenario.json"
    file.write_text(file.read_text(encoding="utf-8").replace("own_code:Wise", "own_code:Unwise"))

    with pytest.raises(InvalidScenario, match=r"step 2 .* which answers 'No.' and not 'Yes.'"):
        replay_run(tmp_path / "out", tmp_path / "again")


def test_who_cannot_be_copied_into_a_branch_is_named(
    write: Write, tmp_path: Path, system: AgentSystem
) -> None:
    text = FORKED.replace(":Dealer", ":Locked")

    with pytest.raises(InvalidScenario, match=r"own_code:Locked of anna cannot be copied into"):
        Scenario.load(write(text)).run(system, out=tmp_path / "out")


CROWD = """\
name: crowd
sampling: {max_tokens: 2}
agents: {person: {count: AGENTS, behaviour: "own_code:Shaky"}}
channels:
  street: {listeners: "'person-%d' % (speaker.number % AGENTS + 1)"}
phases:
  - name: talk
    rounds: 3
    order: together
    channel: street
    steps:
      - say: "Speak, {{ heard | length }}."
"""


def test_half_of_a_crowd_raises_and_the_run_ends_with_every_failure_in_its_report(
    write: Write, tmp_path: Path
) -> None:
    agents = 500 if FULL else 16
    scenario = Scenario.load(write(CROWD.replace("AGENTS", str(agents))))
    odd = [(f"person-{n}", r) for n in range(1, agents + 1, 2) for r in (1, 2, 3)]
    raising = {who for who in odd if Random(f"{who[0]} {who[1]}").random() < 0.5}

    with AgentSystem(FaultyModel(), tmp_path / "store") as system:
        [run] = scenario.run(system, out=tmp_path / "out")

    assert run.ended
    assert {(failure.agent, failure.round) for failure in run.failures} == raising
    assert {failure.error for failure in run.failures} == {"LookupError", "SystemExit", "KeyError"}
    assert len(own(run, "person-2")) == 3
    assert sum(not turn.part for turn in run.turns) == 3 * agents - len(raising)
    assert len(run.heard) == 3 * agents - len(raising)
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert all(f"{agent} in {round_}" in page for agent, round_ in raising)
