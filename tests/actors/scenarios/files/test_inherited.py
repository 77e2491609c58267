"""What a file leaves out: another file says it, or what its words are passed to."""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.schema import EngineWords, SamplingWords
from kvactors.actors.scenarios.scenario import Scenario
from kvactors.core.schedule.sampling import Sampling

Write = Callable[..., Path]

GOOD = """\
name: talk
parameters:
  reward: [1, 2]
agents:
  anna:
    persona: You are {{ agent.name }}.
  bob: {count: 2}
phases:
  - name: first
    who: anna
    steps:
      - ask: What is {{ reward }}?
"""


def test_a_file_inherits_what_it_does_not_say(write: Write) -> None:
    write(GOOD, "base.yaml")
    child = write("inherits: base.yaml\nname: child\nparameters: {reward: 7}\n", "child.yaml")

    words = Scenario.load(child).words

    assert (words.name, words.parameters) == ("child", {"reward": 7})
    assert "bob" in words.agents


def test_a_table_stands_beside_the_file_that_names_it(write: Write, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    write("name,age\nmia,30\n", "base/people.csv")
    write("name,age\nben,41\n", "people.csv")
    write(GOOD.replace("{count: 2}", "{table: people.csv}"), "base/base.yaml")
    child = write("inherits: base/base.yaml\nname: child\n", "child.yaml")
    own = write(
        "inherits: base/base.yaml\nname: own\nagents: {bob: {table: people.csv}}\n", "own.yaml"
    )

    tables = [Scenario.load(file).words.agents["bob"].table for file in (child, own)]

    assert tables == ["base/people.csv", "people.csv"]
    (tmp_path / "base/people.csv").unlink()
    Scenario.load(own)
    with pytest.raises(
        InvalidScenario, match=r"base\.yaml:7: agents\.bob\.table: there is no .*base"
    ):
        Scenario.load(child)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("sampling.temperature=null", "sampling.temperature: input should be a valid number"),
        ("engine.max_batch=null", "engine.max_batch: input should be a valid integer"),
    ],
)
def test_null_is_refused_where_it_means_nothing(write: Write, setting: str, told: str) -> None:
    with pytest.raises(InvalidScenario, match=re.escape(told)):
        Scenario.load(write(GOOD), settings=[setting])


def test_words_have_the_defaults_of_what_they_are_passed_to() -> None:
    engine = inspect.signature(AgentSystem).parameters
    sampling = {field.name: field.default for field in fields(Sampling)}

    for name, word in EngineWords.model_fields.items():
        assert word.default == engine[name].default, name
    for name, word in SamplingWords.model_fields.items():
        assert word.default == sampling[name], name


def test_an_inherited_word_is_named_with_its_own_file(write: Write) -> None:
    write(GOOD.replace("who: anna", "who: ana"), "base.yaml")

    with pytest.raises(InvalidScenario, match=r"base\.yaml:10: phases\.0\.who"):
        Scenario.load(write("inherits: base.yaml\nname: child\n", "child.yaml"))
