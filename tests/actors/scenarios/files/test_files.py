"""What is wrong with a scenario file is said with the file, the line and the nearest word."""

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml

from kvactors.actors.scenarios.files.document import read_document
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.schema import json_schema
from kvactors.actors.scenarios.scenario import Scenario

Write = Callable[..., Path]

GOOD = """\
name: talk
parameters:
  reward: [1, 2]
agents:
  anna:
    persona: You are {{ agent.name }}.
  bob: {count: 2}
channels:
  yard: {}
phases:
  - name: first
    who: anna
    steps:
      - ask: What is {{ reward }}?
        as: guess
  - name: second
    steps:
      - say: "{{ answer(phase='first') }}"
"""


def test_a_good_file_is_taken(write: Write) -> None:
    scenario = Scenario.load(write(GOOD))

    assert [phase.name for phase in scenario.words.phases] == ["first", "second"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "- ask:",
            "- aks:",
            "scenario.yaml:14: phases.0.steps.0.aks: no such word: did you mean 'ask'?",
        ),
        (
            "who: anna",
            "who: ana",
            "scenario.yaml:12: phases.0.who: no agent is called 'ana': did you mean 'anna'?",
        ),
        ("name: second", "name: first", "scenario.yaml:11: phases.0: two phases are 'first'"),
        ("{count: 2}", "{count: two}", "scenario.yaml:7: agents.bob.count: input should be"),
        ("{count: 2}", "{count: 0}", "greater than or equal to 1, not 0"),
        ("{count: 2}", "{table: no.csv}", "scenario.yaml:7: agents.bob.table: there is no"),
        (
            "{count: 2}",
            "{from: anna}",
            "scenario.yaml:7: agents.bob: `from` and `joins` go together",
        ),
        ("{count: 2}", "{from: emma, joins: second}", "no such agent: there is anna, bob"),
        ("{count: 2}", "{from: anna, joins: secnd}", "no such phase: did you mean 'second'?"),
        (
            "agent.name",
            "agent.nam",
            "scenario.yaml:6: agents.anna.persona: anna has no column 'nam': did you mean 'name'?",
        ),
        ("agent.name", "agnet.name", "nothing is called 'agnet': did you mean 'agent'?"),
        ("{{ reward }}", "{{ rewrad }}", "nothing is called 'rewrad': did you mean 'reward'?"),
        ("{{ reward }}", "{{ reward", "is no template"),
        (
            "reward: [1, 2]",
            "reward: [1, 1]",
            "scenario.yaml:3: parameters.reward: its values must be different",
        ),
        ("reward:", "round:", "scenario.yaml:3: parameters.round: 'round' means something else"),
        ("phase='first'", "phase='frist'", "no phase is called 'frist': did you mean 'first'?"),
        ("phase='first'", "fase='first'", "answer() has no 'fase': did you mean 'phase'?"),
        ("phase='first'", "agent='ana'", "no agent is called 'ana': did you mean 'anna'?"),
        ("phase='first'", "step='gues'", "no step is called 'gues': did you mean 'guess'?"),
        ("What is {{ reward }}?", "\"{{ answer(phase='second') }}\"", "'second' comes later"),
        (
            "    who: anna",
            "    when: count('x', phase='first') > 0",
            "scenario.yaml:12: phases.0.when: 'first' comes later",
        ),
        ("    who: anna", "    until: round > 3", "`until` needs `rounds`"),
        ("    who: anna", "    order: rule", "`order: rule` has a `rule`"),
        (
            "    who: anna",
            "    order: robin",
            "'robin' is none of round_robin, random, together, rule, free",
        ),
        ("    who: anna", "    rounds: 0", "greater than or equal to 1, not 0"),
        (
            "    who: anna",
            "    channel: yrad",
            "scenario.yaml:12: phases.0.channel: no such channel: did you mean 'yard'?",
        ),
        (
            "    who: anna",
            "    fork: {a: {rewrad: 1}, b: {}}",
            "phases.0.fork.a: no parameter 'rewrad': did you mean 'reward'?",
        ),
        ("    who: anna", "    fork: {a: {reward: 1}}", "`fork` has two or more branches"),
        (
            "        as: guess",
            "        to: yrad",
            "phases.0.steps.0.to: neither a channel nor agents: did you mean 'yard'?",
        ),
        (
            "        as: guess",
            "        choose: [a, b]",
            "a step is one of tell, say, ask, choose, not ['ask', 'choose']",
        ),
        ("- ask: What is {{ reward }}?", "- choose: [a, b]", "`choose` has a `prompt`"),
        (
            "- ask: What is {{ reward }}?",
            "- choose: [a, a]\n        prompt: x",
            "two or more different texts",
        ),
        ("name: talk", "name: talk\nname: talk", "scenario.yaml:2: name stands here twice"),
        (
            "name: talk",
            "name: talk\nseeds: 1..x",
            "scenario.yaml:2: seeds: seeds are a whole number",
        ),
        ("name: talk", "name: talk\nmetrics: recall", "what is your own is named module:name"),
        ("name: talk", "name: talk\nmetrics: kvactors:nothing", "__init__.py has no 'nothing'"),
        ("name: talk", "name: talk\ninherits: scenario.yaml", "inherits goes round in a circle"),
        ("name: talk", "name: [talk", "scenario.yaml:2: no YAML"),
        ("name: talk", "name: !!python/object/apply:os.system [ls]", "no YAML"),
        ("name: talk", "- talk", "a scenario is a mapping of words"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(write: Write, old: str, new: str, told: str) -> None:
    text = GOOD.replace(old, new) if new != "- talk" else "- talk"
    assert text != GOOD

    with pytest.raises(InvalidScenario) as caught:
        Scenario.load(write(text))

    assert told in str(caught.value)


def test_a_forked_run_has_one_model(write: Write) -> None:
    text = GOOD + "    fork: {a: {}, b: {}}\n    swap_model: other\n"

    with pytest.raises(InvalidScenario, match="branches of a run have one model"):
        Scenario.load(write(text))


def test_probes_are_checked(write: Write) -> None:
    probe = "probes:\n  - {name: code, ask: 'What?', about: second, after: first}\n"

    with pytest.raises(InvalidScenario, match="'first' is before 'second', which it is about"):
        Scenario.load(write(GOOD + probe))
    with pytest.raises(InvalidScenario, match="no such phase as 'thrid'"):
        Scenario.load(write(GOOD + probe.replace("after: first", "after: thrid")))


def test_memories_that_begin_with_each_other_are_a_circle(write: Write) -> None:
    circle = GOOD.replace(
        "  bob: {count: 2}",
        "  bob: {from: emil, joins: second}\n  emil: {from: bob, joins: second}",
    )

    with pytest.raises(InvalidScenario, match="in a circle"):
        Scenario.load(write(circle))


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("seeds", "path=value"),
        ("phases.frist.rounds=2", "there is no 'frist': did you mean 'first'"),
        ("agents.bob.cuont=3", "agents.bob.cuont: no such word: did you mean 'count'"),
        ("name.it=3", "'talk' has no 'it' in it"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(write: Write, setting: str, told: str) -> None:
    with pytest.raises(InvalidScenario, match=told):
        Scenario.load(write(GOOD), settings=[setting])


def test_yes_and_no_are_words(write: Write) -> None:
    choose = "- choose: [yes, no]\n        prompt: Well?"

    words = Scenario.load(write(GOOD.replace("- ask: What is {{ reward }}?", choose))).words

    assert words.phases[0].steps[0].choose == ("yes", "no")


def test_settings_reach_named_items_of_lists(write: Write) -> None:
    words = Scenario.load(write(GOOD), settings=["phases.second.rounds=4", "seeds=1..3"]).words

    assert (words.phases[1].rounds, words.seeds) == (4, (1, 2, 3))


def test_tables_make_agents_and_their_columns(write: Write) -> None:
    write("name,age,city\nmia,30,Oslo\nben,041,Rome\n", "people.csv")
    text = GOOD.replace("{count: 2}", "{table: people.csv, persona: 'From {{ agent.city }}.'}")

    scenario = Scenario.load(write(text))

    assert scenario.words.agents["bob"].table == "people.csv"
    with pytest.raises(InvalidScenario, match=r"anna has no column 'city'"):
        Scenario.load(write(text.replace("{{ reward }}", "{{ agent.city }}")))
    with pytest.raises(InvalidScenario, match=r"3 agents, and people\.csv has 2 rows"):
        Scenario.load(write(text.replace("{table", "{count: 3, table")))
    write("name,age\nmia\n", "people.csv")
    with pytest.raises(InvalidScenario, match=r"people.csv:2: not as many values"):
        Scenario.load(write(text))


def test_a_template_cannot_take_the_memory_or_reach_python(write: Write) -> None:
    for trick in ("{{ 'a' * 10**9 }}", "{{ agent.__class__.__mro__ }}", "{{ ''.__class__ }}"):
        text = GOOD.replace("You are {{ agent.name }}.", f'"{trick}"')
        with pytest.raises(InvalidScenario):
            Scenario.load(write(text))


def test_aliases_of_aliases_are_counted(write: Write) -> None:
    lines = ["name: talk", "a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for one, other in zip("abcdefg", "bcdefgh", strict=True):
        lines.append(f"{other}: &{other} [{', '.join([f'*{one}'] * 10)}]")

    with pytest.raises(InvalidScenario, match="values, more than"):
        Scenario.load(write("\n".join(lines)))


def test_the_published_schema_takes_good_files_and_refuses_bad_ones(write: Write) -> None:
    schema = json.loads(json.dumps(json_schema()))
    good = yaml.safe_load(GOOD)

    jsonschema.validate(good, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**good, "phaces": []}, schema)


def test_the_words_of_a_document_are_read_once(write: Write) -> None:
    document = read_document(write(GOOD))

    assert document.check().name == "talk"
