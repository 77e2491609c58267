"""Files that nobody would write on purpose are refused in words, or taken."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvactors.actors.scenarios.files.document import MOST_BYTES
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.folder import RunFolder
from kvactors.actors.scenarios.scenario import Scenario

Write = Callable[..., Path]

GOOD = """\
name: talk
agents:
  anna:
    persona: You are {{ agent.name }}.
phases:
  - name: first
    steps:
      - ask: Who are you?
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('about: "\\udfff"', "scenario.yaml:1: half a character"),
        ("? [1, 2]\n: 3", "scenario.yaml:1: a word is no list or mapping"),
        ("about: " + 2000 * "[", "more than 50 levels deep"),
        ("about: " + 60 * "[" + 60 * "]", "scenario.yaml:1: more than 50 levels deep"),
        ("inherits: .", "scenario.yaml:1: inherits: '.' cannot be read"),
        ("inherits: nowhere.yaml", "scenario.yaml:1: inherits: 'nowhere.yaml' cannot be read"),
        ('inherits: "a\\0b"', "scenario.yaml:1: inherits: 'a\\x00b' cannot be read"),
        ("inherits: 7", "scenario.yaml:1: inherits: it is the path of another scenario file"),
    ],
)
def test_a_strange_file_is_refused_in_words(write: Write, text: str, told: str) -> None:
    with pytest.raises(InvalidScenario) as caught:
        Scenario.load(write(f"{text}\n{GOOD}"))

    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("Who are you?", '"{{"', "scenario.yaml:8: phases.0.steps.0.ask: '{{' is no template"),
        ("{{ agent.name }}", "{{", "scenario.yaml:4: agents.anna.persona: 'You are {{.' is no"),
        (
            "{{ agent.name }}",
            "{{ '\\ud83d' }}",
            "anna: the persona has a lone surrogate, '\\ud83d'",
        ),
        ("steps:", "when: '1 +'\n    steps:", "scenario.yaml:7: phases.0.when: '1 +' is no expr"),
        ("phases:", "channels: {a: {form: '{{'}}\nphases:", "channels.a.form: '{{' is no template"),
        ("phases:", "stop: [{when: '('}]\nphases:", "stop.0.when: '(' is no expression"),
        (
            "Who are you?",
            "\"{{ answers(step=['a']) }}\"",
            "phases.0.steps.0.ask: a step goes by its name, and not ['a']",
        ),
        (
            "phases:",
            "probes: [{name: p, ask: x, about: all}]\nphases:",
            "probes.0.about: no such phase as 'all'",
        ),
        (
            "phases:",
            f"parameters: {{a: {10**30}}}\nphases:",
            "scenario.yaml:5: no YAML: 1000000000",
        ),
        ("phases:", f"parameters: {{a: 0x{'f' * 9999}}}\nphases:", "has more than 64 bits"),
        ("phases:", "sampling: {max_tokens: 1e30}\nphases:", "sampling.max_tokens: unable to pa"),
        ("phases:", "sampling: {temperature: .inf}\nphases:", "temperature: input should be a fi"),
        (
            "phases:",
            "probes: [{name: p, ask: x, after: []}]\nphases:",
            "probes.0.after: Tuple should have at least 1",
        ),
        (
            "phases:",
            "channels: {a: {members: []}}\nphases:",
            "channels.a.members: Tuple should have at",
        ),
        (
            "- ask: Who are you?",
            "- tell: You are.\n        sampling: {max_tokens: 2}",
            "scenario.yaml:8: phases.0.steps.0: nothing is answered to `tell`: it has no",
        ),
        ("steps:", "who: []\n    steps:", "phases.0.who: Tuple should have at least 1"),
    ],
)
def test_a_strange_text_is_refused_with_its_line(
    write: Write, old: str, new: str, told: str
) -> None:
    with pytest.raises(InvalidScenario) as caught:
        Scenario.load(write(GOOD.replace(old, new)))

    assert told in str(caught.value)


def test_half_a_character_is_set_nowhere(write: Write) -> None:
    with pytest.raises(InvalidScenario, match="--set about:1: half a character"):
        Scenario.load(write(GOOD), settings=['about="\\ud800"'])


def test_a_file_without_end_is_not_read(write: Write) -> None:
    path = write(GOOD)
    with path.open("a") as file:
        file.truncate(MOST_BYTES + 1)

    with pytest.raises(InvalidScenario, match="bytes, more than 16,000,000: what is long goes"):
        Scenario.load(path)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("name,x,x\nanna,1,2\n", "two columns have one name: name, x, x"),
        (f"name,x\nanna,{5000 * '9'}\n", ""),
    ],
)
def test_a_strange_table_is_refused_or_text(write: Write, table: str, told: str) -> None:
    write(table, "people.csv")
    path = write(GOOD.replace("  anna:\n", "  anna:\n    table: people.csv\n"))

    if told:
        with pytest.raises(InvalidScenario, match=told):
            Scenario.load(path)
    else:
        assert Scenario.load(path)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"version": 2, "scenario": {"word": "of later"}}, "is of a newer version"),
        ({"version": "1", "scenario": {}}, "cannot be read"),
        ({"scenario": {}}, "cannot be read: KeyError('version')"),
        ([], "cannot be read"),
        ({"version": 1, "scenario": {}, "tag": "", "origin": None, "homes": [1]}, "cannot be read"),
    ],
)
def test_a_run_that_is_none_of_ours_is_told_in_a_line(
    told: object, said: str, tmp_path: Path
) -> None:
    (tmp_path / "scenario.json").write_text(json.dumps(told), encoding="utf-8")

    with pytest.raises(InvalidScenario) as refused:
        RunFolder.read(tmp_path)

    assert f"scenario.json {said}" in str(refused.value)
