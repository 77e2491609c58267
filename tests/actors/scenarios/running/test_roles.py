"""Agents whose own code says what they say: `behaviour: module:Class` of a scenario file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from talks import DEALERS, own, untimed

from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.journal.records import Event
from kvactors.actors.scenarios.scenario import Scenario

MakePlay = Callable[..., Any]
Write = Callable[..., Path]

ONE = """\
name: one
agents: {anna: {behaviour: "own_code:CLASS", asks: bob}, bob: {}, emma: {}}
phases:
  - name: talk
    rounds: 3
    who: anna
    steps:
      - STEP
"""


def one(name: str, step: str = "say: Speak.") -> str:
    """The scenario of one behaviour."""
    return ONE.replace("CLASS", name).replace("STEP", step)


@pytest.mark.parametrize("order", range(5))
def test_code_says_what_its_agent_says(play: MakePlay, order: int) -> None:
    made = play(DEALERS, lambda agent, prompt: f"{agent}!")

    run = made.run(order=order)

    assert own(run) == ["1: bob! ()", "2: bob! (bob emma)", "3: bob! (bob emma)"]
    assert made.told["bob"][:3] == ["What of anna!?", "Thank you.", "anna: 1: bob! ()"]
    assert made.told["anna"][:2] == ["I deal.", "Speak, 1."]
    first = next(turn for turn in run.turns if turn.agent == "anna" and not turn.part)
    assert (first.cache, first.generated_tokens, first.memory) == ("", 0, 2)
    asked = next(turn for turn in run.turns if turn.agent == "bob")
    assert (asked.step, asked.part, asked.heard_by) == (first.step, 3, ("anna",))
    assert next(h.speaker for h in run.heard if h.text == "Thank you.") == "anna"
    assert [turn.prompt for turn in run.turns if turn.phase == "end" and not turn.part] == [
        "2",
        "3",
        "3",
    ]


@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize("text", [DEALERS, one("Broken"), one("Left")])
def test_code_goes_on_behind_any_record(play: MakePlay, text: str, order: int) -> None:
    whole = play(text)
    expected = whole.run(order=order)

    for cut in range(len(whole.records)):
        assert untimed(play(text).run(order=cut, before=whole.records[:cut])) == untimed(expected)


ASKED = """\
name: asked
agents: {emma: {}, bob: {}, anna: {behaviour: "own_code:Dealer", asks: bob}}
phases:
  - name: news
    who: emma
    steps:
      - say: "News?"
        to: bob
  - name: talk
    who: [bob, anna]
    order: together
    rounds: 2
    steps:
      - ask: "Speak, {{ round }}."
"""


@pytest.mark.parametrize("order", range(10))
def test_who_is_asked_by_code_has_done_what_stands_before_and_nothing_behind(
    play: MakePlay, order: int
) -> None:
    made = play(ASKED, lambda agent, prompt: f"{agent}!")

    made.run(order=order)

    asked = ["What of anna!?", "Thank you."]
    assert made.told["bob"] == ["emma: emma!", "Speak, 1.", *asked, "Speak, 2.", *asked]


def test_code_chooses_among_the_choices(play: MakePlay) -> None:
    choose = "{choose: [left, right], prompt: 'Where?'}"

    run = play(one("Chooser", choose), lambda agent, prompt: "right").run()
    wrong = play(one("Echo", choose), lambda agent, prompt: "up").run()

    assert own(run) == ["right"] * 3
    assert wrong.failures[0].text == "'up' is none of the choices left, right"
    assert [failure.error for failure in wrong.failures] == ["InvalidInput"] * 3


def test_who_says_nothing_is_heard_by_nobody(play: MakePlay) -> None:
    run = play(one("Silent").replace("    who: anna\n", "")).run()

    assert not own(run)
    assert not run.failures
    assert {turn.agent for turn in run.turns} == {"bob", "emma"}


def test_code_that_raises_is_made_anew_and_its_failure_is_recorded(play: MakePlay) -> None:
    run = play(one("Broken")).run()

    assert own(run) == ["1", "1"]
    assert [(f.error, f.text, f.part) for f in run.failures] == [("LookupError", "the 2. time", 0)]
    assert [turn.memory for turn in run.turns if not turn.part] == [1, 3]


def test_what_its_agent_fails_at_reaches_the_code_and_the_report(play: MakePlay) -> None:
    run = play(one("Echo"), lambda agent, prompt: "!no").run()

    assert [(f.error, f.part) for f in run.failures] == [("TurnFailed", 1), ("TurnFailed", 0)] * 3


def test_a_step_ends_behind_what_its_code_did_not_await(play: MakePlay) -> None:
    for order in range(5):
        made = play(one("Left"))
        run = made.run(order=order)
        assert own(run) == ["done"] * 3
        steps = [
            (record.step, record.part)
            for record in made.records
            if record.step < 7 and not isinstance(record, Event)
        ]
        assert steps.index((2, 0)) == 2


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        ("stranger", "InvalidInput", "anna may ask bob, not 'emma': the file's `asks` says whom"),
        ("number", "InvalidInput", "agents of a scenario are told text, not 7"),
        ("blocks", "BlockingCall", "in a scenario nothing blocks"),
        ("publishes", "InvalidInput", "thinks, observes, asks, sends and broadcasts"),
        ("sleeps", "TypeError", "nothing of asyncio"),
        ("leaves", "SystemExit", "3"),
        ("half", "InvalidInput", "lone surrogate"),
        ("wrong", "TypeError", "a text or an Answer, not 5"),
    ],
)
def test_what_code_may_not_do_is_a_failure_of_its_step(
    play: MakePlay, call: str, error: str, told: str
) -> None:
    run = play(one("Own", f"say: {call}")).run()

    assert {failure.error for failure in run.failures if not failure.part} == {error}
    assert all(told in failure.text for failure in run.failures)
    assert len(run.failures) == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("behaviour: 'own_code:Deler'", "own_code.py has no 'Deler': did you mean 'Dealer'?"),
        ("behaviour: 'no_code:Dealer'", "no module 'no_code' is beside the file, or installed"),
        ("behaviour: Dealer", "what is your own is named module:name, not 'Dealer'"),
        ("behaviour: 'own_code:NOTHING'", "own_code:NOTHING is no subclass of AgentBehaviour"),
        ("behaviour: 'own_code:Needs'", "own_code:Needs is made without arguments: missing a"),
        ("behaviour: 'bad_code:X'", "bad_code cannot be imported: ZeroDivisionError"),
        ("asks: bob", "`asks` is whom a `behaviour` asks: there is none"),
        ("behaviour: 'own_code:Dealer', asks: bib", "no agent is called 'bib': did you mean 'bob'"),
        ("behaviour: 'own_code:Dealer', asks: emma", "emma has a behaviour: let a phase ask it"),
    ],
)
def test_a_behaviour_that_is_none_is_named_with_its_line(
    write: Write, words: str, told: str
) -> None:
    write("1 / 0\n", "bad_code.py")
    text = DEALERS.replace("""{behaviour: "own_code:Dealer", asks: bob}""", f"{{{words}}}")
    text = text.replace("emma: {}", "emma: {behaviour: 'own_code:Echo'}")

    with pytest.raises(InvalidScenario, match=r"scenario.yaml:2: agents.anna") as error:
        Scenario.load(write(text))
    assert told in str(error.value)
