"""Probes of a system of agents: they choose with scores, and leave no trace."""

from collections.abc import Callable
from pathlib import Path

import pytest
from puppet_talk import TALK, answers

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.journal.records import Run
from kvactors.actors.scenarios.scenario import Scenario
from kvactors.actors.testing import FaultyModel

Write = Callable[..., Path]

HOT = TALK.replace("max_tokens: 8", "max_tokens: 8, temperature: 0.9")
CHOICE = """\
  - {name: tea, ask: "Tea?", choices: [green tea, black tea], expect: green}
"""


def played(scenario: Scenario, store: Path, out: Path, *, lockstep: bool = False) -> Run:
    """The run of a scenario whose agents begin anew."""
    with AgentSystem(FaultyModel(), store, reproducible=True) as system:
        [run] = scenario.run(system, out=out, lockstep=lockstep)
    return run


def test_a_probe_chooses_with_scores_and_is_right_if_that_is_the_likelier(
    write: Write, tmp_path: Path
) -> None:
    run = played(Scenario.load(write(TALK + CHOICE)), tmp_path / "store", tmp_path / "out")

    probes = [turn for turn in run.turns if turn.name == "tea"]
    assert [turn.agent for turn in probes] == ["anna", "bob"] * 2
    for turn in probes:
        assert turn.scores is not None
        assert set(turn.scores) == {"green tea", "black tea"}
        assert turn.scores[turn.answer] == max(turn.scores.values())
        assert turn.right == (turn.answer == "green tea")
        assert all(score < 0 for score in turn.scores.values())
    assert not any(turn.scores for turn in run.turns if turn.name != "tea")


def test_probes_change_nothing_of_what_is_drawn(write: Write, tmp_path: Path) -> None:
    probed = played(Scenario.load(write(HOT + CHOICE)), tmp_path / "one", tmp_path / "probed")
    without = Scenario.load(write(HOT + CHOICE), settings=["probes=[]"])
    alone = played(without, tmp_path / "other", tmp_path / "alone")
    again = Scenario.load(write(HOT + CHOICE), settings=["probes=[]", "seeds=1"])
    other = played(again, tmp_path / "third", tmp_path / "again")

    story = [turn for turn in probed.turns if turn.verb != "probe"]
    assert len(probed.turns) > len(story)
    assert [turn.answer for turn in story] == answers(alone)
    assert [turn.memory for turn in story] == [turn.memory for turn in alone.turns]
    assert answers(alone) != answers(other)


@pytest.mark.parametrize("order", ["round_robin", "together", "free"])
def test_out_of_order_agents_say_and_hear_what_they_do_in_lockstep(
    write: Write, tmp_path: Path, order: str
) -> None:
    text = (HOT + CHOICE).replace("  - name: first\n", f"  - name: first\n    order: {order}\n")
    text = text.replace("bob: {}", "bob: {}, emma: {}, carl: {}")
    scenario = Scenario.load(write(text))

    one = played(scenario, tmp_path / "one", tmp_path / "locked", lockstep=True)
    other = played(scenario, tmp_path / "other", tmp_path / "free")

    for first, second in ((one.turns, other.turns), (one.heard, other.heard)):
        assert [said(record) for record in first] == [said(record) for record in second]
    assert len(one.heard) == 12
    assert len(one.turns) == 22


def said(record: object) -> dict[str, object]:
    """A record without what depends on who is faster."""
    names = ("step", "source", "agent", "phase", "round", "prompt", "answer", "scores", "text")
    more = ("heard_by", "heard", "memory", "generated_tokens", "prompt_tokens", "right", "part")
    return {name: getattr(record, name, None) for name in (*names, *more)}
