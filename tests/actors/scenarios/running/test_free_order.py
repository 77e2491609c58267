"""In free order who has heard something speaks, as long as anybody has."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

MakePlay = Callable[..., Any]


def test_in_free_order_only_who_has_heard_something_speaks(play: MakePlay) -> None:
    text = """\
name: chain
agents: {person: {count: 5}}
channels:
  street:
    listeners: "'person-%d' % (speaker.number + 1) if speaker.number < 5 else []"
phases:
  - name: talk
    order: free
    starts: person-1
    rounds: 100
    channel: street
    steps:
      - say: "Pass it on."
"""

    run = play(text).run(order=2)

    assert [turn.agent for turn in run.turns] == [f"person-{n}" for n in range(1, 6)]
    assert [turn.round for turn in run.turns] == [1, 2, 3, 4, 5]
    assert run.events[-1].step < 200


@pytest.mark.parametrize(
    ("prompt", "when", "rounds"),
    [
        ("Day.", "round % 2 == 0", range(2, 31, 2)),
        ("Day.", "round > 10", range(11, 31)),
        ("{{ 1 // (round - 5) }}", "true", [*range(1, 5), *range(6, 31)]),
    ],
)
def test_free_order_ends_only_where_nobody_has_heard_anything(
    play: MakePlay, prompt: str, when: str, rounds: Sequence[int]
) -> None:
    text = f"""\
name: market
agents: {{trader: {{count: 3}}}}
phases:
  - name: open
    steps: [{{say: "Hello."}}]
  - name: days
    order: free
    rounds: 30
    steps: [{{say: "{prompt}", when: "{when}"}}]
"""

    run = play(text).run(order=3)

    spoken = {turn.round for turn in run.turns if turn.phase == "days"}
    assert sorted(spoken) == list(rounds)


@pytest.mark.parametrize("to", ["", "        to: street\n", "        to: [anna, bob]\n"])
def test_nobody_hears_what_it_says_itself(play: MakePlay, to: str) -> None:
    text = """\
name: own
agents: {anna: {}, bob: {}, emma: {}}
channels: {street: {members: [anna, bob]}}
phases:
  - name: news
    who: anna
    steps:
      - tell: "It rains."
TO  - name: talk
    who: [anna, bob]
    order: free
    starts: anna
    rounds: 3
    steps:
      - ask: "{{ heard | map(attribute='text') | join(' ') }}"
"""
    made = play(text.replace("TO", to))

    run = made.run()

    assert [(turn.agent, turn.round, turn.prompt, turn.heard) for turn in run.turns] == [
        ("anna", 1, "", ()),
        *([("bob", 1, "It rains.", (1,))] if to else []),
    ]
    assert any("It rains." in told for told in made.told["anna"])


def test_who_passes_it_on_once_ends_the_phase(play: MakePlay) -> None:
    text = """\
name: village
agents: {person: {count: 6}}
channels:
  street:
    listeners: >-
      agents[[speaker.number - 2, 0] | max:speaker.number + 1] | map(attribute='name') | list
phases:
  - name: day
    order: free
    starts: person-1
    rounds: 2000
    channel: street
    steps:
      - say: "Pass it on."
        when: answers(phase='day', agent=agent.name) | length == 0
"""

    run = play(text).run(order=4)

    assert sorted(turn.agent for turn in run.turns) == [f"person-{n}" for n in range(1, 7)]
    assert run.events[-1].step < 1000


def test_what_is_lent_to_a_behaviour_does_not_keep_a_phase_going(play: MakePlay) -> None:
    text = """\
name: chain
agents: {anna: {behaviour: "own_code:Dealer", asks: bob}, bob: {}, emma: {}}
channels:
  street: {listeners: "'emma' if speaker.name == 'anna' else []"}
phases:
  - name: talk
    order: free
    starts: anna
    who: [anna, emma]
    rounds: 2000
    channel: street
    steps: [{say: "Pass it on."}]
"""

    run = play(text).run(order=2)

    assert [turn.agent for turn in run.turns if not turn.part] == ["anna", "emma"]
    assert run.events[-1].step < 1000
