"""What texts and stop rules see of what was answered, against a definition in five lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvactors.actors.scenarios.files.schema import StepWords
from kvactors.actors.scenarios.running.answers import Answers
from kvactors.actors.scenarios.running.steps import Branch, NotYet, Step

BRANCHES = ("", "left", "left/deep", "right")
SAID = ("yes", "no", None)
WORDS = {"ask": StepWords(ask="How?"), "say": StepWords(say="Well.")}


def asked(number: int, agent: str, round_: int, branch: str = "", name: str = "ask") -> Step:
    return Step(number, "ask", agent, agent, "talk", round_, Branch(branch, {}), words=WORDS[name])


@given(st.data())
def test_they_are_what_has_been_answered_before_whatever_ended_first(data: st.DataObject) -> None:
    draw = data.draw
    answers, steps = Answers(), list[Step]()
    for _ in range(draw(st.integers(1, 30), label="calls")):
        for _ in range(draw(st.integers(0, 3), label="begun")):
            agent, branch = draw(st.sampled_from("ab")), draw(st.sampled_from(BRANCHES))
            name = draw(st.sampled_from(sorted(WORDS)))
            steps.append(asked(3 * len(steps), agent, len(steps) // 3, branch, name))
            answers.add(steps[-1])
        open_ = [step for step in steps if not step.ended]
        for step in draw(st.lists(st.sampled_from(open_), unique_by=id)) if open_ else ():
            step.end(draw(st.sampled_from(SAID)))
        before = draw(st.none() | st.integers(0, 3 * len(steps) + 1), label="before")
        who = draw(st.sampled_from((None, "a", "b")))
        what = draw(st.sampled_from((None, *WORDS)))
        here = Branch(draw(st.sampled_from(BRANCHES)), {})
        seen = [
            step
            for step in steps
            if (before is None or step.number < before)
            and who in (None, step.agent)
            and what in (None, step.name)
            and f"{here.path}/".startswith(f"{step.branch.path}/".lstrip("/"))
        ]
        queries = answers.queries(here, before)

        if still := [step for step in seen if not step.ended]:
            with pytest.raises(NotYet) as waits:
                queries["answers"](agent=who, step=what)
            assert waits.value.steps == still
        else:
            said = [step.text for step in seen if step.text is not None]
            assert queries["answers"](agent=who, step=what) == said
            assert queries["count"]("yes", agent=who, step=what) == said.count("yes")
        last = next((s for s in seen[::-1] if not s.ended or s.text is not None), None)
        if last is not None and not last.ended:
            with pytest.raises(NotYet) as waits:
                queries["answer"](agent=who, step=what)
            assert waits.value.steps == [last]
        else:
            expected = "" if last is None else last.text
            assert queries["answer"](agent=who, step=what) == expected


def test_a_stop_rule_of_many_rounds_looks_once_at_what_was_said() -> None:
    looked = list[str]()

    class Watched(Branch):
        def sees(self, other: str) -> bool:
            looked.append(other)
            return super().sees(other)

    answers, rounds = Answers(), 1000
    count = answers.queries(Watched("", {}), None)["count"]
    for number in range(rounds):
        step = asked(number, "anna", number)
        answers.add(step)
        step.end("yes")
        assert count("yes") == number + 1

    assert 0 < len(looked) <= 2 * rounds
