"""Who does what, who hears it, and in which order: as the file says, whoever is faster."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from talks import TWO, untimed

MakePlay = Callable[..., Any]

# Of an agent's line, by default.
MOST_WAITING = 1000


def test_in_a_round_robin_each_hears_all_who_spoke_before(play: MakePlay) -> None:
    run = play(TWO).run()

    assert [(turn.agent, turn.prompt) for turn in run.turns] == [
        ("anna", "1: "),
        ("bob", "1: anna"),
        ("emma", "1: anna bob"),
        ("anna", "2: bob emma"),
        ("bob", "2: emma anna"),
        ("emma", "2: anna bob"),
    ]
    assert run.turns[1].heard == (run.turns[0].step,)


def test_together_nobody_hears_who_speaks_at_the_same_time(play: MakePlay) -> None:
    run = play(TWO.replace("rounds: 2", "rounds: 2\n    order: together")).run()

    assert [turn.prompt for turn in run.turns] == [
        *["1: "] * 3,
        "2: bob emma",
        "2: anna emma",
        "2: anna bob",
    ]


def test_together_nobody_quotes_who_speaks_at_the_same_time(play: MakePlay) -> None:
    text = TWO.replace("rounds: 2", "order: together").replace(
        "{{ heard | map(attribute='speaker') | join(' ') }}", "{{ answers() | length }}"
    )

    assert [turn.prompt for turn in play(text).run().turns] == ["1: 0"] * 3


@pytest.mark.parametrize("order", range(20))
def test_whoever_is_faster_the_records_are_the_same(play: MakePlay, order: int) -> None:
    text = TWO.replace("rounds: 2", "rounds: 5").replace("say:", "to: bob\n        say:", 1)
    in_lockstep = play(text).run(lockstep=True)

    assert untimed(play(text).run(order=order)) == untimed(in_lockstep)


def test_agents_who_do_not_hear_each_other_do_not_wait(play: MakePlay) -> None:
    text = TWO.replace("say:", "ask:").replace("rounds: 2", "rounds: 3")
    free, locked = play(text), play(text)

    run = free.run(order=3)
    locked.run(order=3, lockstep=True)

    rounds = [turn.round for turn in free.records if hasattr(turn, "answer")]
    assert rounds != sorted(rounds)
    rounds = [turn.round for turn in locked.records if hasattr(turn, "answer")]
    assert rounds == sorted(rounds)
    assert len(run.turns) == 9


def test_an_agents_own_turns_stay_in_their_order(play: MakePlay) -> None:
    made = play(TWO.replace("say:", "ask:").replace("rounds: 2", "rounds: 6"))

    made.run(order=1)

    for agent in ("anna", "bob", "emma"):
        steps = [r.step for r in made.records if getattr(r, "agent", "") == agent]
        assert all(one < other for one, other in pairwise(steps))


def test_a_random_order_is_the_seeds(play: MakePlay) -> None:
    text = TWO.replace("rounds: 2", "rounds: 4\n    order: random").replace("say:", "ask:")

    def speakers(*settings: str) -> list[str]:
        made = play(text, lambda agent, prompt: "yes", *settings)
        return [turn.agent for turn in made.run().turns]

    assert speakers("seeds=1") == speakers("seeds=1")
    assert speakers("seeds=1") != speakers("seeds=2")
    assert sorted(speakers("seeds=1")) == sorted(["anna", "bob", "emma"] * 4)


def test_a_rule_names_the_speakers_by_what_was_said(play: MakePlay) -> None:
    text = """\
name: rule
agents: {anna: {}, bob: {}}
phases:
  - name: talk
    order: rule
    rule: "['bob'] if answer() == 'bob' else ['anna']"
    rounds: 3
    steps:
      - ask: "Who next?"
"""

    run = play(text, lambda agent, prompt: "bob").run()

    assert [turn.agent for turn in run.turns] == ["anna", "bob", "bob"]


@pytest.mark.parametrize(
    ("who", "meant"),
    [
        ("person-*", ["person-1", "person-2", "person-10"]),
        ("person-?", ["person-1", "person-2"]),
        ("'*[!1]'", ["person-2", "person-10", "anna"]),
        ("[anna, 'person-1*']", ["person-1", "person-10", "anna"]),
        ("person", ["person-1", "person-2", "person-10"]),
    ],
)
def test_patterns_name_agents(
    play: MakePlay, write: Callable[..., Any], who: str, meant: list[str]
) -> None:
    write("name\nperson-1\nperson-2\nperson-10\n", "people.csv")
    text = f"""\
name: patterns
agents: {{person: {{table: people.csv}}, anna: {{}}}}
phases:
  - name: talk
    who: {who}
    steps:
      - ask: "Who?"
"""

    run = play(text).run()

    assert [turn.agent for turn in run.turns] == meant


def test_who_hears_a_channel_and_in_which_form(play: MakePlay) -> None:
    text = """\
name: channels
agents: {anna: {}, bob: {}, emma: {}}
channels:
  yard: {members: [anna, emma], form: "{{ speaker.name }} whispers {{ text }}"}
phases:
  - name: talk
    who: anna
    steps:
      - say: "Speak."
        to: yard
      - ask: "Think."
      - ask: "Tell bob."
        to: bob
      - tell: "It rains."
      - tell: "It snows."
        to: yard
"""
    made = play(text, lambda agent, prompt: prompt.lower())

    run = made.run()

    assert made.told["emma"] == ["anna whispers speak.", "anna whispers It snows."]
    assert made.told["bob"] == ["anna: tell bob."]
    assert made.told["anna"][-2:] == ["It rains.", "anna whispers It snows."]
    assert [heard.speaker for heard in run.heard if heard.text] == ["", "anna", "anna"]


def test_conditions_decide_by_what_was_answered(play: MakePlay) -> None:
    text = """\
name: conditions
agents: {anna: {}, bob: {}}
phases:
  - name: deal
    order: together
    rounds: 9
    until: count('stop', phase='deal') > 0
    steps:
      - ask: "{{ round }}"
  - name: no
    when: count('stop') == 0
    steps:
      - ask: "Never."
  - name: yes
    when: count('stop') > 0
    steps:
      - ask: "Only bob."
        when: agent.name == 'bob'
"""

    run = play(text, lambda agent, prompt: "stop" if prompt == "3" else "go").run()

    assert [turn.prompt for turn in run.turns] == ["1", "1", "2", "2", "3", "3", "Only bob."]


def test_a_stop_rule_ends_the_run(play: MakePlay) -> None:
    text = TWO.replace("say:", "ask:") + "stop:\n  - {when: count('x') > 0, reason: enough}\n"

    run = play(text, lambda agent, prompt: "x").run()

    assert [turn.round for turn in run.turns] == [1, 1, 1]
    assert [(event.kind, event.text) for event in run.events] == [("stop", "enough"), ("end", "")]
    assert run.ended


def test_a_stop_rule_ends_the_run_where_its_phase_would_end_too(play: MakePlay) -> None:
    text = TWO.replace("say:", "ask:").replace("rounds: 2", "rounds: 2\n    until: round == 1")
    text += "  - {name: later, steps: [{ask: Later.}]}\nstop:\n  - {when: count('x') > 0}\n"

    run = play(text, lambda agent, prompt: "x").run()

    assert [turn.phase for turn in run.turns] == ["talk"] * 3
    assert [event.kind for event in run.events] == ["stop", "end"]


def test_an_agent_that_hears_very_much_at_once_has_room_for_all_of_it(play: MakePlay) -> None:
    text = """\
name: facts
agents: {anna: {}}
phases:
  - name: read
    rounds: 1100
    steps:
      - tell: "f{{ round }}."
"""
    whole, resumed = play(text), play(text)

    run = whole.run()
    again = resumed.run(before=whole.records[:7])

    assert whole.told["anna"] == [f"f{number}." for number in range(1, 1101)]
    assert untimed(again) == untimed(run)
    assert resumed.told["anna"] == whole.told["anna"][7:]
    assert max(whole.most_at_once, resumed.most_at_once) < MOST_WAITING
