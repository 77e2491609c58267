"""What `kvactors serve` does: load, listen, say how to connect, and end in order. Main thread."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvactors.actors.frontends.console.console import err, out, printable, working
from kvactors.actors.frontends.console.key import stored_key
from kvactors.actors.frontends.server.identity.rules import read_rules, shipped_rules
from kvactors.actors.frontends.server.web.command import wait_for_signal
from kvactors.actors.frontends.server.web.keys import KeyFile
from kvactors.actors.frontends.server.web.serve import Server, Settings
from kvactors.actors.system.parameters import parse_bytes
from kvactors.actors.system.system import AgentSystem, default_store
from kvactors.core.errors import InvalidConfig

__all__ = ["run_server"]

INDEX = "clients.db"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def run_server(
    *,
    model: str,
    store: Path | None,
    aliases: Sequence[str],
    rules: Path | None,
    keep: tuple[str, str | None],
    key_file: Path | None,
    engine: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> None:
    """Serve until Ctrl-C or SIGTERM: a `model` under `aliases` (NAME=MODEL) from a `store`, with
    `rules` and the keys of `key_file`; `keep` says how long agents without a name are kept and
    what they may take, `engine` and `settings` are those of the system and the server. Raises
    KvactorsError, OSError."""
    root = (store or default_store()).expanduser()
    encryption_key = stored_key()
    age, most = seconds_of(keep[0]), parse_bytes("--keep-bytes", keep[1]) if keep[1] else None
    chosen = Settings(
        **settings,
        keys=KeyFile(key_file) if key_file else tuple,
        rules=(*shipped_rules(), *(read_rules(rules) if rules else ())),
        aliases=tuple(_alias(text, model) for text in aliases),
        keep_seconds=age,
        keep_bytes=most,
        encryption_key=encryption_key,
    )
    given = {name: value for name, value in engine.items() if value is not None}
    system = AgentSystem(model, store=root, encryption_key=encryption_key, **given)
    with working(f"Loading {printable(model)} …"):
        system.start()
    try:
        with Server(system, root / INDEX, chosen) as server:
            greet(server, model)
            wait_for_signal()
            err.print("stopping: running turns finish, and everything is saved …")
    finally:
        system.stop()


def greet(server: Server, model: str) -> None:
    """Say where the `server` of a `model` is, and what each client needs, ready to paste."""
    url, key = server.url, "$KEY" if server.settings.keys() else "none"
    out.print(f"kvactors serves {printable(model)} at {url}", soft_wrap=True, markup=False)
    out.print(
        f"""
openai       OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}
anthropic    ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY={key}
Claude Code  ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={key} claude --model {model}
Codex        codex -c model={model} -c model_provider=kvactors \\
               -c 'model_providers.kvactors={{name="kvactors", base_url="{url}/v1", \
wire_api="responses"}}'

{url}/ shows the agents, {url}/docs the interface. Ctrl-C ends it.""",
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


def _alias(text: str, model: str) -> str:
    name, _, target = text.partition("=")
    if not name or target != model:
        raise InvalidConfig(f"--alias is NAME={model}, the model that is loaded, not {text!r}")
    return name
