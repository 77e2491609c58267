"""`kvactors store verify`, `gc` and `rm`: they need the store for themselves."""

from collections.abc import Sequence
from pathlib import Path

from rich.filesize import decimal
from rich.text import Text

from kvactors.actors.frontends.cli.store import no_agent, opened
from kvactors.actors.frontends.console.console import out, print_json, printable
from kvactors.core.errors import InvalidConfig

__all__ = ["clean_store", "remove_agent", "verify_store"]


def verify_store(path: Path | None, *, as_json: bool = False) -> bool:
    """Name every bad file, as a line each or in one JSON object; whether there is none. Raises
    InvalidConfig where nothing is stored."""
    bad = []
    with opened(path) as store:
        for problem in store.verify():
            where = str(problem.path.relative_to(store.root))
            bad.append({"agent": problem.agent_id, "file": where, "reason": problem.reason})
            if not as_json:
                line = Text(f"{printable(problem.agent_id)}: ", style="bold red")
                line.append(f"{where}: {printable(problem.reason)}", style="default")
                out.print(line, soft_wrap=True)
        agents, root = len(store.agent_folders()), str(store.root)
    if as_json:
        print_json({"store": root, "agents": agents, "bad": bad})
    else:
        out.print(f"{agents:,} agents checked: {len(bad) or 'no'} bad files", soft_wrap=True)
    return not bad


def clean_store(path: Path | None, fingerprints: Sequence[str]) -> None:
    """Collect garbage. Raises InvalidConfig for a fingerprint that names no one model, and where
    nothing is stored."""
    with opened(path) as store:
        known = store.fingerprints()
        chosen = [_complete(prefix, known) for prefix in fingerprints]
        out.print(f"{decimal(store.gc(chosen))} of KV deleted in {store.root}", soft_wrap=True)


def _complete(prefix: str, known: Sequence[str]) -> str:
    found = [name for name in known if prefix and name.startswith(prefix)]
    if len(found) != 1:
        names = ", ".join(known) or "none"
        raise InvalidConfig(
            f"--fingerprint {prefix!r} fits {len(found)} of the models stored, not one: {names}"
        )
    return found[0]


def remove_agent(agent_id: str, path: Path | None) -> None:
    """Forget an agent. Raises InvalidAgentId if it is not stored."""
    with opened(path) as store:
        if not store.has(agent_id):
            raise no_agent(agent_id, path)
        store.forget(agent_id)
    out.print(f"{printable(agent_id)} is forgotten.", soft_wrap=True)
