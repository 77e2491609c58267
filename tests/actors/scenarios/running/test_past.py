"""What was before a fork is what the file says of it, all of it."""

from collections.abc import Callable
from typing import Any

import pytest

from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.running.runner import Runner

PAST = """\
name: past
agents: {anna: {}, bob: {behaviour: "own_code:Wise"}}
phases:
  - name: first
    steps:
      - choose: [Yes., No.]
        prompt: "Which?"
  - name: second
    swap_model: one
  - name: third
    fork: {left: {}, right: {}}
    steps:
      - ask: "Why?"
probes:
  - {name: rain, after: first, ask: "Rain?", choices: ["yes", "no"]}
"""


def begun_as_another(play: Callable[..., Any], text: str) -> None:
    """Go through the records of `PAST` with another `text`."""
    made = play(PAST)
    made.run()
    kept: list[object] = []
    Runner(play(text).script, kept.append).replay(made.records, exactly=True)
    assert kept == made.records


def test_choices_may_stand_in_another_order(play: Callable[..., Any]) -> None:
    begun_as_another(play, PAST)
    begun_as_another(play, PAST.replace('"yes", "no"', '"no", "yes"'))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[Yes., No.]", "[Yes., No., Never.]", r"between \['Never.', 'No.', 'Yes.'\] and not"),
        ("choose: [Yes., No.]\n        prompt:", "ask:", "there it is a ask of "),
        ('"yes", "no"', '"no", "never"', r"between \['never', 'no'\] and not \['no', 'yes'\]"),
        ('choices: ["yes", "no"]', 'when: "true"', r"between \[\] and not \['no', 'yes'\]"),
        ("swap_model: one", "swap_model: other", "a swap .* namely 'other' and not 'one'"),
        ("left:", "west:", r"namely '\w+ -> \w+@west' and not '\w+ -> \w+@left'"),
    ],
)
def test_what_is_past_stays_as_it_was(
    play: Callable[..., Any], old: str, new: str, told: str
) -> None:
    text = PAST.replace(old, new)
    assert text != PAST

    with pytest.raises(InvalidScenario, match=told):
        begun_as_another(play, text)
