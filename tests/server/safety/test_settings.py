"""Settings that cannot work are refused before anything is loaded."""

import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.identity.rules import read_rules, shorn, strip
from kvactors.actors.frontends.server.web.serve import serve
from kvactors.actors.frontends.server.web.settings import Settings
from kvactors.core.errors import InvalidConfig

KEYS = {"k" * 20}


@pytest.mark.parametrize(
    "origin", ["*", "a.b", "https://*.a.b", "https://a.b/", "https://A.b", "https://", ""]
)
def test_what_no_browser_sends_is_no_origin(origin: str) -> None:
    with pytest.raises(InvalidConfig, match=r"is no origin: write each site as browsers do"):
        Settings(origins=(origin,))


@pytest.mark.parametrize(
    "origin", ["https://a.b", "http://localhost:3000", "chrome-extension://abc", "null"]
)
def test_what_a_browser_sends_is_one(origin: str) -> None:
    assert Settings(origins=(origin,)).gate().origins == {origin}


@pytest.mark.parametrize("name", ["my.host:8443", "https://my.host", "my.host/", "*", "", "[::1]"])
def test_what_never_stands_for_a_host_is_no_name(name: str) -> None:
    with pytest.raises(InvalidConfig, match=r"is no name of a host: write it as it stands in Host"):
        Settings(names=(name,))


@pytest.mark.parametrize("name", ["My.Host", "10.0.0.7", "fe80::1", "haus-ä.de"])
def test_names_and_addresses_are_names(name: str) -> None:
    assert name.lower() in Settings(names=(name,), keys=lambda: KEYS).gate().hosts


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "my.host", ""])
def test_who_can_be_reached_by_others_needs_keys(host: str) -> None:
    with pytest.raises(InvalidConfig, match=r"can be reached by others: give --api-key-file"):
        Settings(host=host)


def test_whoever_is_reached_through_a_proxy_needs_keys() -> None:
    with pytest.raises(InvalidConfig, match=r"^my.host can be reached by others"):
        Settings(names=("localhost", "my.host"))

    assert "my.host" not in Settings(names=("LocalHost",)).gate().hosts


@pytest.mark.parametrize(("host", "every"), [("0.0.0.0", True), ("::", True), ("10.0.0.7", False)])
def test_any_name_is_answered_where_it_listens_everywhere(host: str, *, every: bool) -> None:
    assert (not Settings(host=host, keys=lambda: KEYS).gate().hosts) is every


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"most": 0}, "most is 0"),
        ({"most": "4"}, "most is '4'"),
        ({"most": math.nan}, "most is nan"),
        ({"grace": math.inf}, "grace is inf"),
        ({"grace": -1.0}, "-1.0"),
        ({"grace": None}, "grace is None"),
        ({"keys": ["k" * 32]}, "keys is a list: give what gives the keys"),
    ],
)
def test_what_no_server_can_keep_is_refused(setting: Any, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        Settings(**setting)


def test_a_server_that_cannot_be_made_leaves_its_index_to_the_next(
    system: AgentSystem, tmp_path: Path
) -> None:
    index = tmp_path / "clients.db"
    with pytest.raises(AttributeError) as failed:
        serve(system, port=0, index=index, limits="wrong")

    with serve(system, port=0, index=index):
        assert failed.traceback, "it holds the one that could not be made"


def test_a_server_that_never_began_leaves_its_index_when_it_is_stopped(
    system: AgentSystem, tmp_path: Path
) -> None:
    index = tmp_path / "clients.db"
    never = serve(system, port=0, index=index)
    with pytest.raises(InvalidConfig, match="another server has"):
        serve(system, port=0, index=index)

    never.stop()

    with serve(system, port=0, index=index):
        assert never.model


def test_an_index_that_cannot_be_read_is_let_go(system: AgentSystem, tmp_path: Path) -> None:
    index = tmp_path / "clients.db"
    with closing(sqlite3.connect(index)) as newer:
        newer.execute("pragma user_version = 9")
    with pytest.raises(InvalidConfig, match="of a newer version") as refused:
        serve(system, port=0, index=index)
    index.unlink()

    with serve(system, port=0, index=index):
        assert refused.traceback, "it holds the one that could not be made"


def test_an_index_in_a_folder_that_is_not_there_makes_none(
    system: AgentSystem, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfig, match="no folder"):
        serve(system, port=0, index=tmp_path / "not" / "there" / "clients.db")

    assert not any(tmp_path.glob("not"))


def rules(path: Path, pattern: str, tell: str = "{}") -> Path:
    path.write_text(
        f"[[rule]]\nname = 'star'\npattern = '{pattern}'\naction = 'note'\ntell = '{tell}'\n",
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize(
    "tell", ['{"moon": "{}"}', "{", "{} and {}", "{name}", "{0.real}", "{[x]}"]
)
def test_a_rule_that_could_not_tell_its_value_is_refused(tmp_path: Path, tell: str) -> None:
    with pytest.raises(InvalidConfig, match=r"rule 1: tell has \{\} once"):
        read_rules(rules(tmp_path / "rules.toml", "Moon: (.*)", tell))


@pytest.mark.parametrize("pattern", ["5", "'('", "'a{99999999999}'"])
def test_what_is_no_pattern_is_refused(tmp_path: Path, pattern: str) -> None:
    path = rules(tmp_path / "rules.toml", "x")
    path.write_text(path.read_text(encoding="utf-8").replace("'x'", pattern), encoding="utf-8")

    with pytest.raises(InvalidConfig, match="is no pattern"):
        read_rules(path)


@pytest.mark.parametrize(
    ("of", "rule"), [("tool", r'of is "system" or "user", not'), ("user", 'action is "ignore" of')]
)
def test_a_rule_is_for_what_it_can_be_for(tmp_path: Path, of: str, rule: str) -> None:
    path = rules(tmp_path / "rules.toml", "x")
    path.write_text(f"{path.read_text(encoding='utf-8')}of = '{of}'\n", encoding="utf-8")

    with pytest.raises(InvalidConfig, match=rule):
        read_rules(path)


def test_a_rule_for_what_the_user_says_takes_nothing_out_of_a_system_prompt(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        "[[rule]]\nname = 'star'\npattern = 'star'\naction = 'ignore'\nof = 'user'\n",
        encoding="utf-8",
    )
    found = read_rules(path)

    assert strip("a star", found).text == "a star"
    assert shorn("a star", found) == "a "


def test_a_value_that_is_not_there_is_none(tmp_path: Path) -> None:
    found = read_rules(rules(tmp_path / "rules.toml", r"^Star:(?: (\S+))?$", "It is {{}} {}."))

    assert strip("Star:\nrest", found).values == {"star": ""}
    assert found[0].tell.format("x") == "It is {} x."
