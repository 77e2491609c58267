"""What can mean nothing, or two things, is refused before anything runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvactors.actors.scenarios.files import schema
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.scenario import Scenario
from kvactors.core.schedule import sampling

Write = Callable[..., Path]

TALK = """\
name: talk
agents: {anna: {}, bob: {}, carl: {}}
phases:
  - name: first
    who: [anna, bob]
    order: free
    starts: [anna, carl]
    rounds: 3
    steps:
      - ask: "{{ answers(round=1) | length }}"
"""


def _refused(write: Write, text: str) -> str:
    with pytest.raises(InvalidScenario) as caught:
        Scenario.load(write(text))
    return str(caught.value)


def test_who_starts_takes_part(write: Write) -> None:
    assert Scenario.load(write(TALK))
    told = _refused(write, TALK.replace("[anna, carl]", "carl"))
    assert "scenario.yaml:7: phases.0.starts: `who` has none of carl: nobody would speak" in told


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("answers(round='1')", "a round goes by its number, from 1 on, and not '1'"),
        (
            "answers('first', 'anna', 'ask', '1')",
            "a round goes by its number, from 1 on, and not '1'",
        ),
        ("answers(round=0)", "a round goes by its number, from 1 on, and not 0"),
        ("answers(round=1.5)", "a round goes by its number, from 1 on, and not 1.5"),
        ("answers(round=true)", "a round goes by its number, from 1 on, and not True"),
        ("[count(7)]", "what is counted is a text, and not 7"),
    ],
)
def test_a_quote_that_would_always_be_empty_is_refused(write: Write, query: str, told: str) -> None:
    refused = _refused(write, TALK.replace("answers(round=1)", query))

    assert f"scenario.yaml:10: phases.0.steps.0.ask: {told}" in refused


def test_more_choices_than_an_answer_can_have_are_refused(write: Write) -> None:
    def texts(many: int) -> str:
        return "[" + ", ".join(f"c{number}" for number in range(many)) + "]"

    most = schema.MOST_CHOICES
    choose = TALK.replace("- ask:", "- choose: CHOICES\n        prompt:")
    probe = TALK + "probes: [{name: p, ask: What, choices: CHOICES}]\n"

    for text, place, word in (
        (choose, "10: phases.0.steps.0", "`choose` is between"),
        (probe, "11: probes.0", "`choices` are"),
    ):
        assert Scenario.load(write(text.replace("CHOICES", texts(most))))
        told = _refused(write, text.replace("CHOICES", texts(most + 1)))
        assert f"scenario.yaml:{place}: {word} 256 texts at most" in told
    assert most == sampling.MOST_CHOICES


@pytest.mark.parametrize(
    ("agents", "told"),
    [
        ("{b: {count: 2}, x: {table: people.csv}}", "agents.x: 'b' is an agent and a group"),
        ("{x: {table: people.csv}, b: {count: 2}}", "agents.x: 'b' is an agent and a group"),
        ("{b: {table: people.csv}}", "agents.b: 'b' is an agent and a group"),
        ("{all: {}, b: {}}", "agents.all: 'all' means everybody: call it otherwise"),
        ("{all: {count: 2}}", "agents.all: 'all' means everybody: call it otherwise"),
    ],
)
def test_a_name_means_one_agent_or_one_group(write: Write, agents: str, told: str) -> None:
    write("name\nb\nmia\n", "people.csv")
    text = TALK.replace("{anna: {}, bob: {}, carl: {}}", agents)
    text = text.replace("who: [anna, bob]", "who: b").replace("starts: [anna, carl]", "starts: b")

    assert f"scenario.yaml:2: {told}" in _refused(write, text)


def test_a_group_of_one_may_be_called_as_its_agent(write: Write) -> None:
    write("name\nanna\n", "people.csv")

    assert Scenario.load(write(TALK.replace("{anna: {}", "{anna: {table: people.csv}")))
