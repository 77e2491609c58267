"""What `kvactors serve` does: load, listen, say how to connect, and end in order. Main thread."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvactors.actors.cluster.cluster import Cluster
from kvactors.actors.frontends.console.console import err, out, printable, working
from kvactors.actors.frontends.console.key import stored_key
from kvactors.actors.frontends.server.identity.rules import read_rules, shipped_rules
from kvactors.actors.frontends.server.identity.tables import INDEX
from kvactors.actors.frontends.server.web.command import ended_by_signal, wait_for_signal
from kvactors.actors.frontends.server.web.keys import KeyFile
from kvactors.actors.frontends.server.web.listening import listen, loading, more_connections
from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.frontends.server.web.settings import Settings
from kvactors.actors.frontends.server.wire.models import OURS
from kvactors.actors.system.parameters import parse_bytes
from kvactors.actors.system.system import AgentSystem, default_store
from kvactors.core.errors import InvalidConfig
from kvactors.persistence.files.home import expanded

__all__ = ["run_server"]

# It asks for models by name in all of these places.
CLAUDE_CODE = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
# It sums up when so many tokens are left as its longest answer has, 20,000 at most, and some more:
# below this context that would be most of it.
ROOM, ANSWER = 100_000, 8_000
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def run_server(
    *,
    home: tuple[str | None, str | None],
    store: Path | None,
    aliases: Sequence[str],
    rules: Path | None,
    keep: tuple[str, str | None],
    key_file: Path | None,
    engine: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> None:
    """Serve until Ctrl-C or SIGTERM. `home`: the address of a cluster, or None, and the model,
    which goes by `aliases` (NAME=MODEL), too. With a `store`, `rules` and the keys of `key_file`;
    `keep` says how long agents without a name are kept and what they may take, `engine` and
    `settings` are those of the system and the server. Raises KvactorsError, OSError."""
    root = expanded(store or default_store())
    age, most = seconds_of(keep[0]), parse_bytes("--keep-bytes", keep[1]) if keep[1] else None
    chosen = Settings(
        **settings,
        keys=KeyFile(key_file) if key_file else tuple,
        rules=(*shipped_rules(), *(read_rules(rules) if rules else ())),
        keep_seconds=age,
        keep_bytes=most,
        encryption_key=stored_key(),
    )
    given = {name: value for name, value in engine.items() if value is not None}
    cluster, model = home
    if cluster is None:
        opened = _system(model or "default", root, given, chosen, aliases)
    else:
        own = [*given, *(["keep_bytes"] if most else []), *([] if model is None else ["model"])]
        opened = _clustered(cluster, root, own, chosen, aliases)
    more_connections()
    with ended_by_signal(), opened as server:
        greet(server)
        wait_for_signal()
        err.print("stopping: running turns finish, and everything is saved …")


@contextmanager
def _system(
    model: str, root: Path, engine: Mapping[str, Any], settings: Settings, aliases: Sequence[str]
) -> Iterator[Server]:
    """A server, with `settings` and `aliases`, of a system of this process: of a `model` and
    further `engine` parameters, over the store at `root`."""
    settings = _named(settings, aliases, model)
    system = AgentSystem(model, store=root, encryption_key=settings.encryption_key, **engine)
    with listen(settings) as listening:
        with loading(listening, settings.gate()), working(f"Loading {printable(model)} …"):
            system.start()
        try:
            with Server(system, root / INDEX, settings, listening) as server:
                yield server
        finally:
            system.stop()


@contextmanager
def _clustered(
    address: str, root: Path, own: Sequence[str], settings: Settings, aliases: Sequence[str]
) -> Iterator[Server]:
    """A server, with `settings` and `aliases`, of the cluster at an `address`; its index is in the
    folder `root`. Refuses `own` options, which only a system of this process has."""
    if own:
        raise InvalidConfig(
            f"--{', --'.join(own).replace('_', '-')}: the nodes of a cluster have a model, an "
            "engine and disks of their own: give it to `kvactors node`, or leave out --cluster"
        )
    with Cluster.connect(address, encryption_key=settings.encryption_key) as cluster:
        settings = _named(settings, aliases, cluster.model)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with Server(cluster.front(), root / INDEX, settings) as server:
            yield server


def greet(server: Server) -> None:
    """Say where a `server` is, and what each client needs, ready to paste."""
    url, key, model = server.url, "$KEY" if server.settings.keys() else "none", server.model
    variable = "KVACTORS_API_KEY=$KEY " if server.settings.keys() else ""
    room = f"CLAUDE_CODE_MAX_CONTEXT_TOKENS={server.context}"
    if server.context < ROOM:
        room += f" CLAUDE_CODE_MAX_OUTPUT_TOKENS={ANSWER}"
    named = ', env_key="KVACTORS_API_KEY"' if variable else ""
    seen = f"{url}/ shows the agents" if server.has_page else "kvactors cluster status shows nodes"
    out.print(f"kvactors serves {printable(model)} at {url}", soft_wrap=True, markup=False)
    out.print(
        f"""
openai       OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}
anthropic    ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY={key}
Claude Code  ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={key} \\
               {" ".join(f"{name}={OURS}" for name in CLAUDE_CODE)} \\
               {room} claude
Codex        {variable}codex -c model={model} -c model_provider=kvactors \\
               -c 'model_providers.kvactors={{name="kvactors", base_url="{url}/v1", \
wire_api="responses"{named}}}'

{seen}, {url}/docs the interface. Ctrl-C ends it.""",
        soft_wrap=True,
        markup=False,
    )


def seconds_of(text: str) -> float | None:
    """ "30d" in seconds; None for "never". Raises InvalidConfig."""
    if text == "never":
        return None
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise InvalidConfig(f"--keep is a number and s, m, h or d, or never, not {text!r}")
    return float(int(match[1]) * _SECONDS[match[2]])


def _named(settings: Settings, aliases: Sequence[str], model: str) -> Settings:
    return replace(settings, aliases=tuple(_alias(text, model) for text in aliases))


def _alias(text: str, model: str) -> str:
    name, _, target = text.partition("=")
    if not name or target != model:
        raise InvalidConfig(f"--alias is NAME={model}, the model that is loaded, not {text!r}")
    return name
