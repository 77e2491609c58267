"""What the regimes of the server share: a server, a process of clients, and texts of a length."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvactors.actors import AgentSystem
from kvactors.bench.peer_process import Act, in_another_process
from kvactors.bench.regime import CannotRun
from kvactors.bench.serve.client import Answer, player
from kvactors.bench.setup import Setup

if TYPE_CHECKING:
    from kvactors.actors.frontends.server.web.serve import Server

__all__ = ["Scene", "scene", "spoken", "text", "tools"]

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SAMPLE = 2000
# As many as Codex has, about.
TOOLS = 8


class Scene(NamedTuple):
    """A running `system`, its `server`, and a process of clients, which does what it is told."""

    system: AgentSystem
    server: "Server"
    clients: Act

    @property
    def url(self) -> str:
        """Of the server."""
        return self.server.url


@contextmanager
def scene(setup: Setup, **options: Any) -> Iterator[Scene]:
    """A server over the model of `setup`, in an engine with these `options`. Raises CannotRun
    without the libraries that it needs."""
    try:
        from kvactors.actors.frontends.server.web.serve import serve
    except ImportError as error:
        raise CannotRun(f"{error.name} is missing: kvactors[serve]") from error
    with (
        setup.system(**options) as system,
        serve(system, port=0, any_model=True, grace=1) as server,
        in_another_process(player) as clients,
    ):
        yield Scene(system, server, clients)


def text(setup: Setup, tokens: int, seed: int) -> str:
    """Words of about so many `tokens` for the model of `setup`, by `seed`; not scaled here."""
    chat = setup.loaded.chat
    sample = _words(SAMPLE, 0)
    characters = round(tokens * len(sample) / len(chat.encode(sample)))
    return _words(characters, seed)


def _words(characters: int, seed: int) -> str:
    """Words of two to nine letters, cut to so many characters."""
    rng = np.random.default_rng([seed, characters])
    found = list[str]()
    while sum(map(len, found)) < characters:
        found.append("".join(rng.choice(list(LETTERS), rng.integers(2, 10))))
    return " ".join(found)[:characters].rstrip().ljust(characters, ".")


def tools(setup: Setup, tokens: int) -> tuple[tuple[str, str], ...]:
    """Tools whose descriptions have about so many `tokens` together."""
    return tuple(
        (f"tool_{number}", text(setup, tokens // TOOLS, 1000 + number)) for number in range(TOOLS)
    )


def spoken(answers: Sequence[Answer]) -> list[int]:
    """The characters of answers. Blanks in front of one are nobody's words."""
    return [ord(character) for answer in answers for character in answer.text.lstrip()]
