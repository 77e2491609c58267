"""The plain words of a file are the values that they look like."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvactors.actors.scenarios.scenario import Scenario

Write = Callable[..., Path]

TALK = """\
name: talk
parameters: {value: WRITTEN}
agents: {anna: {}}
phases: [{name: first, steps: [{ask: "{{ value }}"}]}]
"""


def _read(write: Write, written: str) -> list[Any]:
    """What is read, in the file and as a setting."""
    in_file = Scenario.load(write(TALK.replace("WRITTEN", written)))
    setting = f"parameters.value={written}"
    as_set = Scenario.load(write(TALK.replace("WRITTEN", "0")), settings=[setting])
    return [scenario.words.parameters["value"] for scenario in (in_file, as_set)]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001),
        ("-1E3", -1000.0),
        ("+1.5e+3", 1500.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("010", 10),
        ("-007", -7),
        ("+7", 7),
        ("0o17", 15),
        ("0xfF", 255),
        ("-.inf", -math.inf),
        (".INF", math.inf),
        ("'010'", "010"),
    ],
)
def test_a_number_is_read_as_it_is_written(write: Write, written: str, value: Any) -> None:
    assert [(v, type(v)) for v in _read(write, written)] == [(value, type(value))] * 2


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *(("7", 7), ("-0.5", -0.5), ("1e-3", 0.001), ("-2.5E+3", -2500.0)),
        # Codes and names are no numbers.
        *((text, text) for text in ("007", "-01", "1e", "e3", "1e999", "3 km", "", "\u0663")),
    ],
)
def test_a_cell_of_a_table_is_a_number_as_a_file_has_it_but_for_codes(
    write: Write, play: Callable[..., Any], written: str, value: Any
) -> None:
    write(f"name,value\nanna,{written}\n", "people.csv")
    text = TALK.replace("{anna: {}}", "{people: {table: people.csv}}").replace("WRITTEN", "0")

    found = play(text).script.cast.members["anna"].view.value

    assert (found, type(found)) == (value, type(value))


def test_no_number_is_one_too(write: Write) -> None:
    assert all(math.isnan(value) for value in _read(write, ".nan"))


@pytest.mark.parametrize(
    "written",
    [
        *("12:30", "9:30", "190:20:30.15", "2024-01-01", "2024-01-01 10:00:00", "1_000", "0b11"),
        *("1..3", "e3", "1e", "0x", "=", "trueish", "Falsehood", "inf"),
    ],
)
def test_what_is_no_number_is_text(write: Write, written: str) -> None:
    assert _read(write, written) == [written, written]
