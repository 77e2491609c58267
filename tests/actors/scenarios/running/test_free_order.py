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
