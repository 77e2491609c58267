"""`kvactors store verify`, `gc` and `rm`: they need the store for themselves."""

from collections.abc import Sequence
from pathlib import Path

from rich.filesize import decimal
from rich.text import Text

from kvactors.actors.frontends.cli.console import out, printable
from kvactors.actors.frontends.cli.store import no_agent, opened
from kvactors.core.errors import InvalidConfig

__all__ = ["clean_store", "remove_agent", "verify_store"]


def verify_store(path: Path | None) -> bool:
    """Name every bad file; whether there is none."""
    found = 0
    with opened(path) as store:
        if store is None:
            return True
        for problem in store.verify():
            found += 1
            where = problem.path.relative_to(store.root)
            line = Text(f"{printable(problem.agent_id)}: ", style="bold red")
            line.append(f"{where}: {printable(problem.reason)}", style="default")
            out.print(line, soft_wrap=True)
        agents = len(store.agent_folders())
    out.print(f"{agents} agents checked: {found or 'no'} bad files", soft_wrap=True)
    return not found


def clean_store(path: Path | None, fingerprints: Sequence[str]) -> None:
    """Collect garbage. Raises InvalidConfig for a fingerprint that names no one model."""
    with opened(path) as store:
        if store is None:
            return
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
        if store is None or not store.has(agent_id):
            raise no_agent(agent_id, path)
        store.forget(agent_id)
    out.print(f"{printable(agent_id)} is forgotten.", soft_wrap=True)
