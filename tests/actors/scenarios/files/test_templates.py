"""A template's text is the same in every process: nothing in it is where something lies."""

import pytest
from jinja2 import TemplateRuntimeError

from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.templates import template


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ("['a', 'b'] | map('upper')", "['A', 'B']"),
        ("[1, 2] | select('odd')", "[1]"),
        ("[1, 2] | reject('odd')", "[2]"),
        ("[{'a': 1}, {'a': 0}] | selectattr('a')", "[{'a': 1}]"),
        ("[{'a': 1}, {'a': 0}] | rejectattr('a')", "[{'a': 0}]"),
        ("[1, 2, 3] | batch(2)", "[[1, 2], [3]]"),
        ("[1, 2, 3] | slice(2)", "[[1, 2], [3]]"),
        ("[1, 2, 1] | unique", "[1, 2]"),
        ("[1, 2] | reverse", "[2, 1]"),
        ("'abc' | reverse", "cba"),
        ("{'a': 1} | items", "[('a', 1)]"),
        ("[[1] | map('string')]", "[['1']]"),
        ("range(3) | map('string') | join('-')", "0-1-2"),
    ],
)
def test_what_is_gone_through_is_a_list_when_joined_with_a_text(made: str, text: str) -> None:
    assert template(f"{{{{ 'It is ' ~ ({made}) }}}}").render() == f"It is {text}"
    assert template(f"{{{{ {made} }}}}").render() == text


@pytest.mark.parametrize(
    "slip",
    ["'It is ' ~ name.upper", "[name.upper]", "name['upper'] | string", "'' ~ range", "name.upper"],
)
def test_a_method_that_is_not_called_is_no_text(slip: str) -> None:
    with pytest.raises((TemplateRuntimeError, TypeError), match="is no text: call it"):
        template(f"{{{{ {slip} }}}}").render(name="anna")


def test_a_method_of_what_is_written_out_is_refused_as_the_file_is_read() -> None:
    with pytest.raises(InvalidScenario, match="is no template: upper is no text: call it"):
        template("{{ 'It is ' ~ 'anna'.upper }}")


def test_methods_that_are_called_give_what_they_give() -> None:
    text = "{{ name.upper() ~ '{}'.format(1) ~ {'a': 1}.get('a') ~ (name | map('upper') | list) }}"

    assert template(text).render(name="x") == "X11['X']"
