"""Branches, probes, failures and stop rules of a run."""

from collections.abc import Callable
from typing import Any

import pytest
from talks import TWO, untimed

MakePlay = Callable[..., Any]


FORKED = """\
name: forked
parameters: {mood: calm}
agents: {anna: {}, bob: {}}
phases:
  - name: before
    steps:
      - ask: "Before, {{ mood }}."
  - name: after
    fork: {left: {mood: angry}, right: {}}
    steps:
      - ask: "After, {{ mood }}, {{ branch }}, {{ answers() | length }}."
  - name: late
    who: anna
    steps:
      - ask: "{{ answers(phase='after') | length }}"
"""


@pytest.mark.parametrize("order", range(5))
def test_branches_have_one_past_and_know_nothing_of_each_other(play: MakePlay, order: int) -> None:
    run = play(FORKED).run(order=order)

    assert [(turn.branch, turn.prompt) for turn in run.turns] == [
        ("", "Before, calm."),
        ("", "Before, calm."),
        ("left", "After, angry, left, 2."),
        ("left", "After, angry, left, 3."),
        ("left", "2"),
        ("right", "After, calm, right, 2."),
        ("right", "After, calm, right, 3."),
        ("right", "2"),
    ]
    assert [turn.memory for turn in run.turns] == [1, 1, 2, 2, 3, 2, 2, 3]
    assert sum(event.kind == "fork" for event in run.events) == 4


def test_who_joins_later_begins_with_anothers_memory(play: MakePlay) -> None:
    text = """\
name: joining
agents: {anna: {}, heir: {from: anna, joins: second}}
phases:
  - name: first
    rounds: 3
    steps:
      - ask: "{{ agent.name }}?"
  - name: second
    steps:
      - ask: "{{ agent.name }}?"
"""

    run = play(text).run(order=4)

    assert [(turn.agent, turn.memory) for turn in run.turns[3:]] == [("anna", 4), ("heir", 4)]


def test_probes_ask_after_phases_and_are_outside_of_the_story(play: MakePlay) -> None:
    text = (
        TWO.replace("rounds: 2", "rounds: 1").replace("say:", "ask:")
        + """\
  - name: end
    who: anna
    steps:
      - ask: "{{ answers() | length }}"
probes:
  - name: rain
    ask: "Does it rain, {{ item }}?"
    each: "['sir', 'madam']"
    who: [anna, bob]
    expect: "of does IT rain"
    about: talk
  - name: code
    who: emma
    after: end
    ask: "The code?"
    expect: "I do not know."
    match: exact
    never_told: true
"""
    )
    run = play(text, lambda agent, prompt: f"{agent} of {prompt}").run(order=1)

    probes = [turn for turn in run.turns if turn.verb == "probe"]
    assert [(t.agent, t.phase, t.distance, t.right) for t in probes] == [
        ("anna", "talk", 0, True),
        ("anna", "talk", 0, True),
        ("bob", "talk", 0, True),
        ("bob", "talk", 0, True),
        ("anna", "end", 1, True),
        ("anna", "end", 1, True),
        ("bob", "end", 1, True),
        ("bob", "end", 1, True),
        ("emma", "end", None, False),
    ]
    assert probes[-1].expected is None
    assert next(turn.prompt for turn in run.turns if turn.phase == "end") == "3"
    assert probes[0].memory == 1


SKIPPING = """\
name: skipping
parameters: {told: true}
agents: {anna: {}}
phases:
  - name: first
    when: told
    steps: [{tell: "The code is 4711."}]
  - name: parted
    fork: {left: {told: false}, right: {}}
    steps: [{ask: "Hello."}]
  - name: second
    when: told
    steps: [{ask: "Hello."}]
  - name: third
    steps: [{ask: "Hello."}]
probes:
  - {name: code, ask: "The code?", about: first, after: third, expect: "4711"}
  - {name: hello, ask: "Hello?", about: second, after: third, expect: "Hello"}
"""


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        (True, [("left", "code", 2), ("right", "code", 3), ("right", "hello", 1)]),
        (False, []),
    ],
)
def test_a_phase_that_did_not_take_place_is_neither_asked_of_nor_counted(
    play: MakePlay, told: bool, asked: list[tuple[str, str, int]]
) -> None:
    run = play(SKIPPING.replace("told: true", f"told: {told}")).run()

    probes = [turn for turn in run.turns if turn.verb == "probe"]
    assert [(turn.branch, turn.name, turn.distance) for turn in probes] == asked


def test_a_probe_that_fails_says_what_it_expected_as_one_that_is_answered(play: MakePlay) -> None:
    text = TWO + 'probes: [{name: x, ask: "X?", expect: "4711", about: talk, who: [anna, bob]}]\n'

    run = play(text, lambda agent, prompt: "!full" if agent == "bob" else "4711").run()

    failed, answered = run.failures[-1], run.turns[-1]
    assert (answered.expected, answered.right) == (failed.expected, not failed.right)
    assert (answered.about, answered.distance) == (failed.about, failed.distance) == ("talk", 0)
    assert [each.right for each in run.failures] == [None, None, False]


def test_what_fails_is_recorded_and_the_others_go_on(play: MakePlay) -> None:
    def answer(agent: str, prompt: str) -> str:
        return "!broken" if agent == "bob" else prompt

    run = play(TWO, answer).run(order=7)

    assert [(f.agent, f.error) for f in run.failures] == [("bob", "TurnFailed")] * 2
    assert [turn.agent for turn in run.turns] == ["anna", "emma"] * 2
    assert run.turns[1].prompt == "1: anna"


def test_a_template_that_fails_is_a_failure_of_its_step(play: MakePlay) -> None:
    text = TWO.replace("{{ round }}", "{{ 1 / (round - 1) }}")

    run = play(text).run()

    assert [(f.error, f.round) for f in run.failures] == [("ZeroDivisionError", 1)] * 3


def test_a_failure_ends_the_run_where_the_file_says_so(play: MakePlay) -> None:
    text = TWO.replace("say:", "ask:") + "on_failure: stop\n"

    run = play(text, lambda agent, prompt: "!no" if agent == "bob" else "yes").run()

    assert len(run.failures) == 1
    assert [event.kind for event in run.events] == ["stop", "end"]
    assert all(turn.round == 1 for turn in run.turns)


STOPPED = FORKED + "stop:\n  - {when: answers(phase='after') | length == 2, reason: enough}\n"


@pytest.mark.parametrize("order", range(5))
def test_a_stop_rule_that_holds_in_a_branch_ends_the_run(play: MakePlay, order: int) -> None:
    run = play(STOPPED).run(order=order)

    assert [turn.branch for turn in run.turns] == ["", "", "left", "left"]
    assert [event.kind for event in run.events] == ["fork", "fork", "stop", "end"]


@pytest.mark.parametrize("order", range(10))
@pytest.mark.parametrize("text", [TWO, FORKED, STOPPED])
def test_a_run_goes_on_behind_any_of_its_records(play: MakePlay, text: str, order: int) -> None:
    whole = play(text)
    expected = whole.run(order=order)

    for cut in range(len(whole.records)):
        assert untimed(play(text).run(order=cut, before=whole.records[:cut])) == untimed(expected)


def test_nothing_is_begun_behind_a_restart_that_is_not_over(play: MakePlay) -> None:
    text = (
        TWO.replace("say:", "ask:")
        + """\
  - name: later
    restart: true
    steps:
      - ask: "Later."
"""
    )
    made = play(text)

    run = made.run(order=3)

    assert made.open_behind == {"restart": 0, "end": 0}
    assert len(run.turns) == 9


@pytest.mark.parametrize("word", ["expect", "ask"])
def test_half_a_character_that_a_template_makes_is_a_failure_of_its_step(
    play: MakePlay, word: str
) -> None:
    half = """'{{ "\\ud83d" }}'"""
    words = {"ask": '"Which?"', "expect": '"?"', word: half}
    probe = f"probes: [{{name: mood, ask: {words['ask']}, expect: {words['expect']}}}]\n"

    run = play(TWO + probe).run()

    assert run.ended
    assert {failure.error for failure in run.failures} == {"InvalidInput"}
    assert "what a template makes has a lone surrogate" in run.failures[0].text
