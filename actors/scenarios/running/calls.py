"""What an agent is asked for a step: texts filled in with what is there. The runner's thread."""

from types import SimpleNamespace
from typing import Any, Protocol

from kvactors.actors.scenarios.files.cast import Member
from kvactors.actors.scenarios.files.expected import EMPTY, is_empty, never_right
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.schema import ProbeWords, StepWords
from kvactors.actors.scenarios.files.templates import expression, template
from kvactors.actors.scenarios.running.answers import Answers
from kvactors.actors.scenarios.running.script import Script
from kvactors.actors.scenarios.running.steps import Call, Step
from kvactors.core.text import check_text

__all__ = ["Asked", "as_heard", "make_call"]


class Asked(Protocol):
    """Whose step it is, and what it has heard since its last turn."""

    member: Member
    unread: list[SimpleNamespace]


def make_call(script: Script, answers: Answers, asked: Asked, step: Step) -> Call | None:
    """The call of a `step` of the run of a `script`, for who is `asked`; it may quote `answers`.
    None if its condition does not hold. Raises NotYet, and whatever a template may raise."""
    words = step.words
    assert words is not None
    names = _names(script, answers, asked, step)
    if words.when and not expression(words.when).render(**names):
        return None
    if isinstance(words, StepWords):
        choices = tuple(_filled(choice, names) for choice in words.choose or ())
        return Call(_filled(words.template, names), choices)
    return _probe(words, names)


def _probe(words: ProbeWords, names: dict[str, Any]) -> Call:
    expected = None if words.expect is None else _filled(words.expect, names)
    choices = tuple(_filled(choice, names) for choice in words.choices)
    if is_empty(expected):
        raise InvalidScenario(EMPTY)
    if wrong := never_right(expected, choices, words.match):
        raise InvalidScenario(f"{wrong} {', '.join(choices)}")
    return Call(_filled(words.ask, names), choices, expected)


def _names(script: Script, answers: Answers, asked: Asked, step: Step) -> dict[str, Any]:
    names = {
        **step.branch.variables,
        **answers.queries(step.branch, step.horizon),
        "agent": asked.member.view,
        "agents": script.cast.views,
        "phase": step.phase,
        "round": step.round,
        "heard": list(asked.unread),
    }
    return {**names, "item": step.item} if step.kind == "probe" else names


def _filled(source: str, names: dict[str, Any]) -> str:
    return check_text("what a template makes", str(template(source).render(**names)))


def as_heard(script: Script, source: Step) -> str:
    """The text of a step that ended, in the form in which its listeners hear it."""
    if source.form is None or source.text is None:
        return source.text or ""
    speaker = script.cast.members[source.agent].view
    names = {"text": source.text, "phase": source.phase, "round": source.round}
    return _filled(source.form, {**source.branch.variables, **names, "speaker": speaker})
