"""`kvactors store verify`, `gc`, `rm` and `backup`: they need the store for themselves."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.filesize import decimal
from rich.progress import Progress
from rich.text import Text

from kvactors.actors.frontends.cli.store import no_agent, opened
from kvactors.actors.frontends.console.console import (
    agreed,
    err,
    out,
    print_json,
    printable,
    unechoed,
)
from kvactors.actors.frontends.server.identity.index import Index
from kvactors.actors.frontends.server.identity.tables import INDEX
from kvactors.actors.system.backups import back_up
from kvactors.actors.system.system import default_store
from kvactors.core.errors import InvalidConfig, InvalidInput
from kvactors.persistence.backup.backup import Backup, BackupReport
from kvactors.persistence.backup.objects import open_objects
from kvactors.persistence.backup.restore import restore
from kvactors.persistence.files.home import expanded

__all__ = [
    "back_up_store",
    "clean_store",
    "remove_agent",
    "restore_store",
    "show_backup",
    "verify_store",
]


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


def remove_agent(agent_id: str, path: Path | None, *, asks: bool) -> None:
    """Forget `agent_id` in the store at `path`; if it `asks`, whoever is at a terminal has to say
    yes. Raises InvalidAgentId if it is not stored."""
    with opened(path) as store:
        if not store.has(agent_id):
            raise no_agent(agent_id, path)
        if asks and not _may_delete(agent_id):
            err.print("nothing is deleted")
            return
        index = store.root / INDEX
        # A server's: what the agent answered is kept there too, and who it was.
        known = Index(index) if index.is_file() else None
        store.forget(agent_id)
        if known is not None:
            known.forget(agent_id)
            known.close()
    out.print(f"{printable(agent_id)} is forgotten.", soft_wrap=True)


def _may_delete(agent_id: str) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        return True
    with unechoed():
        return agreed(f"Delete {printable(agent_id)} and all that it remembers, for good?")


def back_up_store(url: str, path: Path | None, *, check: bool) -> bool:
    """Copy what is not at `url` yet of the store at `path`, or with a `check` of all that is there
    what is damaged, too; whether no agent had to be skipped. Raises BackupFailed, and InvalidConfig
    where nothing is stored."""
    with opened(path) as store, Progress(console=err, transient=True) as progress:
        task = progress.add_task("agents")
        report = back_up(
            Backup(open_objects(url), check=check),
            store.root,
            store.agent_folders(),
            store.files.of,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    return show_backup(report)


def show_backup(report: BackupReport) -> bool:
    """Say what a backup has; whether no agent had to be skipped."""
    _show_skipped(report.skipped)
    added, nbytes = decimal(report.added), decimal(report.nbytes)
    out.print(
        f"{report.agents:,} agents in {report.name}: {added} of {nbytes} were new", soft_wrap=True
    )
    return not report.skipped


def _show_skipped(reasons: Sequence[str]) -> None:
    for reason in reasons:
        line = Text("skipped ", style="bold red").append(printable(reason), style="default")
        out.print(line, soft_wrap=True)


def restore_store(
    url: str, path: Path | None, snapshot: str | None, part: str, *, skip_damaged: bool
) -> bool:
    """Make a store at `path` of a `snapshot` at `url`, or of the latest, or of a `part` such as
    "2/3" of its agents, with `skip_damaged` of those that can be read; whether all could be.
    Raises BackupFailed, InvalidInput, OSError."""
    root = expanded(path or default_store())
    found = re.fullmatch("([1-9][0-9]{0,3})/([1-9][0-9]{0,3})", part)
    if found is None or int(found[1]) > int(found[2]):
        raise InvalidInput(f"--part is such as 2/3: the second of three, not {part!r}")
    skipped: list[str] = []
    agents = restore(
        open_objects(url),
        root,
        snapshot,
        (int(found[1]), int(found[2])),
        skip=skipped.append if skip_damaged else None,
    )
    _show_skipped(skipped)
    out.print(f"{agents:,} agents restored into {root}", soft_wrap=True)
    return not skipped
