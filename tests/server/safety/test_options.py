"""What `kvactors serve` is told reaches the system and the server."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from seeded import bug, seeded
from typer.testing import CliRunner

from kvactors.actors.cli import app
from kvactors.actors.frontends.server.identity.rules import read_rules, shipped_rules
from kvactors.actors.frontends.server.web import command_run
from kvactors.actors.frontends.server.web.command_run import seconds_of
from kvactors.actors.frontends.server.web.settings import Settings
from kvactors.actors.frontends.server.wire.models import Named
from kvactors.core.errors import InvalidConfig

KEY = "a" * 32
RULE = "[[rule]]\nname = 'moon'\npattern = 'Moon: .*'\naction = 'ignore'\n"


@dataclass
class Recorder:
    """Stands for the system and its server, and keeps what each is made with."""

    engine: dict[str, Any] = field(default_factory=dict)
    server: tuple[Any, ...] = ()
    url, model, has_page, context = "http://here", "tiny", True, 4096

    @property
    def settings(self) -> Settings:
        assert isinstance(self.server[2], Settings)
        return self.server[2]

    def of_system(self, model: str, **engine: Any) -> Self:
        self.engine = {"model": model, **engine}
        return self

    def of_server(self, *given: Any) -> Self:
        self.server = given
        return self

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def served(*options: str) -> Recorder:
    """What `kvactors serve` makes of `options`; it listens on a free port of this machine."""
    made = Recorder()
    with (
        seeded(bug(command_run, "AgentSystem")(lambda _: made.of_system)),
        seeded(bug(command_run, "Server")(lambda _: made.of_server)),
        seeded(bug(command_run, "listen")(lambda true: lambda _: true(Settings(port=0)))),
        seeded(bug(command_run, "wait_for_signal")(lambda _: lambda: None)),
    ):
        result = CliRunner().invoke(app, ["serve", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return made


def test_every_option_reaches_the_system_and_the_server(tmp_path: Path) -> None:
    keys, rules, store = tmp_path / "keys", tmp_path / "rules.toml", tmp_path / "store"
    keys.touch(mode=0o600)
    keys.write_text(KEY, encoding="utf-8")
    rules.write_text(RULE, encoding="utf-8")

    made = served(
        *("--model", "tiny", "--store", str(store), "--host", "0.0.0.0", "--port", "8123"),
        *("--api-key-file", str(keys), "--alias", "one=tiny", "--alias", "two=tiny"),
        *("--any-model", "--cors", "https://a.b", "--name", "my.host", "--rules", str(rules)),
        *("--isolation", "strict", "--memory-budget", "8GB", "--context", "4096"),
        *("--keep", "12h", "--keep-bytes", "20GB"),
    )

    assert made.engine == {
        "model": "tiny",
        "store": store,
        "encryption_key": None,
        "isolation": "strict",
        "memory_budget": "8GB",
        "context": 4096,
    }
    assert made.server[:2] == (made, store / "clients.db")
    assert set(made.settings.keys()) == {KEY}
    assert made.settings == Settings(
        host="0.0.0.0",
        port=8123,
        keys=made.settings.keys,
        names=("my.host",),
        origins=("https://a.b",),
        aliases=("one", "two"),
        any_model=True,
        rules=(*shipped_rules(), *read_rules(rules)),
        keep_seconds=12 * 3600,
        keep_bytes=20 * 10**9,
    )


def test_what_is_not_said_is_left_to_the_system_and_the_server(tmp_path: Path) -> None:
    made = served("--store", str(tmp_path))

    assert made.engine == {"model": "default", "store": tmp_path, "encryption_key": None}
    assert made.settings == Settings(rules=tuple(shipped_rules()), keep_seconds=30 * 24 * 3600)


def test_a_model_answers_to_an_alias() -> None:
    named = Named("m", aliases=("x",))

    assert named.check("x") == "x"
    assert [entry["id"] for entry in named.entries()] == ["m", "x"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("5m", 300), ("12h", 43_200), ("30d", 2_592_000), ("0s", 0), ("never", None)],
)
def test_how_long_agents_are_kept_is_said_with_a_unit(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1.5h", "30 d", "30D", "1w", "1d12h", ""])
def test_what_says_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="--keep is a number and s, m, h or d, or never"):
        seconds_of(text)
