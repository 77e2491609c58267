"""A probe that could not be asked, or never be right, is refused before anything runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.results.measure import measure
from kvactors.actors.scenarios.scenario import Scenario

Write = Callable[..., Path]

TALK = """\
name: talk
parameters: {mood: calm}
agents: {anna: {}, bob: {}}
phases:
  - name: first
    steps:
      - ask: "What?"
  - name: second
    steps:
      - ask: "What now?"
        as: now
probes:
  - name: tea
    ask: "Which tea, {{ mood }}, {{ answer(phase='first') }}?"
    expect: green
    choices: [green, black]
    when: count('x', phase='first') == 0
"""


def test_a_probe_may_quote_what_is_there_when_it_is_asked(write: Write) -> None:
    late = TALK.replace("phase='first'", "phase='second'")

    Scenario.load(write(TALK.replace("{{ mood }}", "{{ round }}, {{ heard | length }}")))
    Scenario.load(write(late.replace("    expect:", "    after: second\n    expect:")))
    Scenario.load(write(late.replace("    expect:", "    about: second\n    expect:")))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("{{ mood }}", "{{ moood }}", "14: probes.0.ask: nothing is called 'moood'"),
        ("[green, black]", "[green, '{{ moood }}']", "did you mean 'mood'?"),
        ("expect: green", "expect: '{{ moood }}'", "15: probes.0.expect: nothing is called"),
        ("count('x'", "cuont('x'", "17: probes.0.when: nothing is called 'cuont'"),
        ("answer(phase='first')", "answer(phase='frist')", "did you mean 'first'?"),
        (
            "answer(phase='first')",
            "answer(phase='second')",
            "14: probes.0.ask: 'second' comes later",
        ),
        ("count('x', phase='first')", "count('x', phase='second')", "'second' comes later"),
        ("phase='first') }}", "step='nwo') }}", "no step is called 'nwo': did you mean 'now'?"),
        ("count('x', phase='first')", "count('x', agent='ana')", "did you mean 'anna'?"),
        ("[green, black]", "[green, '{{ agent.nam }}']", "no column 'nam': did you mean 'name'?"),
        ("[green, black]", "[green, green]", "13: probes.0: `choices` are two or more different"),
        ("[green, black]", "[green]", "13: probes.0: `choices` are two or more different"),
        (
            "expect: green",
            "expect: grene",
            "15: probes.0.expect: 'grene' is none of the choices: did you mean 'green'?",
        ),
        (
            "expect: green",
            "match: exact\n    expect: gree",
            "16: probes.0.expect: 'gree' is none of the choices: did you mean 'green'?",
        ),
        (
            "[green, black]",
            "[green tea, greens]",
            "15: probes.0.expect: 'green' is in several of the choices: did you mean 'greens'?",
        ),
        ("    expect:", "    each: '[heard]'\n    expect:", "nothing is called 'heard'"),
        ("expect: green", "expect: ' '", "15: probes.0.expect: what is expected is empty"),
    ],
)
def test_what_is_wrong_with_a_probe_is_said_with_its_line(
    write: Write, old: str, new: str, told: str
) -> None:
    text = TALK.replace(old, new)
    assert text != TALK

    with pytest.raises(InvalidScenario) as caught:
        Scenario.load(write(text))

    assert told in str(caught.value)


def test_what_is_expected_is_one_of_the_choices_when_they_are_filled_in(
    play: Callable[..., Any],
) -> None:
    text = TALK.replace(
        "expect: green", "expect: \"{{ 'green' if agent.name == 'bob' else 'red' }}\""
    )

    run = play(text).run()

    assert {failure.agent for failure in run.failures} == {"anna"}
    assert "'red' is none of the choices green, black" in run.failures[0].text
    assert [turn.right for turn in run.turns if turn.verb == "probe"] == [True, True]


@pytest.mark.parametrize(
    ("expects", "counted"),
    [
        ("    expect: green\n", ["recall"]),
        ("    expect: green\n    never_told: true\n", ["refusal"]),
        ("", []),
    ],
)
def test_a_probe_whose_text_cannot_be_filled_in_was_not_answered_as_expected(
    play: Callable[..., Any], expects: str, counted: list[str]
) -> None:
    text = TALK.replace("{{ mood }}", "{{ 1 / 0 }}").replace("    expect: green\n", expects)

    run = play(text).run()

    shares = [metric for metric in measure((), (), run.failures) if metric.agent == "anna"]
    assert {failure.error for failure in run.failures} == {"ZeroDivisionError"}
    assert [(metric.name, metric.value) for metric in shares] == [(name, 0) for name in counted]


def test_a_probe_that_expects_nothing_fails_and_counts_as_no_answer(
    play: Callable[..., Any],
) -> None:
    text = TALK.replace("    choices: [green, black]\n", "").replace(
        "expect: green", "expect: \"{{ 'of' if agent.name == 'bob' else ' ' }}\""
    )

    run = play(text).run()

    probes = [turn for turn in run.turns if turn.verb == "probe"]
    assert [(turn.agent, turn.right) for turn in probes] == [("bob", True), ("bob", True)]
    assert [failure.agent for failure in run.failures] == ["anna", "anna"]
    assert "what is expected is empty" in run.failures[0].text


@pytest.mark.parametrize(("match", "right"), [("", [False, True]), ("contains", [True, True])])
def test_of_several_choices_the_one_that_is_expected_is_right(
    play: Callable[..., Any], match: str, right: list[bool]
) -> None:
    text = TALK.replace("[green, black]", "[green, GREEN]").replace(
        "expect: green", "each: \"['green', 'GREEN']\"\n    expect: '{{ item }}'"
    )
    text += f"    match: {match}\n" if match else ""

    run = play(text).run()

    probes = [turn for turn in run.turns if turn.verb == "probe"]
    found = [
        sorted(turn.right for turn in probes if turn.agent == name) for name in ("anna", "bob")
    ]
    assert found == [sorted(right * (len(probes) // 4))] * 2
