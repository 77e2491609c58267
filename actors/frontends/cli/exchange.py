"""`kvactors export` and `kvactors import`. Only an import of KV loads a model."""

import json
from pathlib import Path

from rich.filesize import decimal

from kvactors.actors.errors import ImportRejected
from kvactors.actors.frontends.cli.store import opened, read_transcript
from kvactors.actors.frontends.console.console import out, printable, stepping, working
from kvactors.actors.frontends.console.key import stored_key
from kvactors.actors.system.export import export_stored
from kvactors.actors.system.system import AgentSystem, default_store
from kvactors.actors.turns.checks import check_id
from kvactors.core.errors import InvalidInput
from kvactors.persistence.files.home import expanded
from kvactors.persistence.formats.archive import import_archive, is_archive
from kvactors.persistence.formats.registry import ARCHIVE, check_readable
from kvactors.persistence.store.store import Store

__all__ = ["import_archived", "import_kv", "needs_model", "run_export"]


def run_export(
    agent_id: str,
    file: Path,
    form: str,
    model: str | None,
    fingerprint: str | None,
    path: Path | None,
) -> None:
    """Write the agent `agent_id` of the store at `path` to a `file` of this `form`: the KV of
    `fingerprint`, under the name of a `model`, which only an archive does without. Raises
    InvalidInput, StorageError, InvalidConfig, OSError."""
    if model is None and form != ARCHIVE:
        raise InvalidInput(
            f"--format {form} has the model's name in the file, and the store does not know it: "
            'say --model, as the agent was run with ("default" is the shipped one)'
        )
    with opened(path) as store, stepping(f"export {printable(agent_id)}") as on_step:
        export_stored(
            store, agent_id, file, form, model=model or "", fingerprint=fingerprint, on_step=on_step
        )
    size = decimal(file.stat().st_size)
    out.print(f"{printable(agent_id)}: {printable(str(file))}, {form}, {size}", soft_wrap=True)


def needs_model(file: Path, form: str | None) -> bool:
    """Whether a file of this form is KV, and no archive. Raises ImportRejected, OSError."""
    if form in (ARCHIVE, None) and is_archive(file):
        return False
    if form == ARCHIVE:
        raise ImportRejected("file", f"{file} is no archive of kvactors")
    return True


def import_archived(file: Path, agent_id: str, path: Path | None) -> None:
    """Make the agent `agent_id` of the archive `file` in the store at `path`; loads no model.
    Raises KvactorsError, OSError."""
    check_id(agent_id)
    root = expanded(path or default_store())
    # Whoever runs the store says what it may take.
    store = Store(root, max_disk=None, encryption_key=stored_key())
    try:
        with stepping(f"import {printable(agent_id)}") as on_step:
            import_archive(
                store, file, agent_id, on_step, lambda records: read_transcript(agent_id, records)
            )
    finally:
        store.close()
    _tell(agent_id, root)


def import_kv(
    file: Path,
    agent_id: str,
    form: str | None,
    model: str,
    tokens: Path | None,
    path: Path | None,
    *,
    of_this_model: bool,
) -> None:
    """Make the agent `agent_id` of the KV in a `file` of this `form`, in the store at `path`: under
    a `model`, with the ids in the file `tokens` where it has none; `of_this_model` as
    `AgentSystem.import_agent` has it. Raises KvactorsError, OSError."""
    check_id(agent_id)
    root = expanded(path or default_store())
    check_readable(file, form)
    ids = _read_tokens(tokens)
    system = AgentSystem(model, store=root, max_disk=None, encryption_key=stored_key())
    with working(f"Loading {printable(model)} …"):
        system.start()
    try:
        with stepping(f"import {printable(agent_id)}") as on_step:
            system.import_agent(
                file,
                agent_id,
                format=form,
                tokens=ids,
                of_this_model=of_this_model,
                on_step=on_step,
            )
    finally:
        system.stop()
    _tell(agent_id, root)


def _tell(agent_id: str, root: Path) -> None:
    out.print(f"{printable(agent_id)}: imported into {root}", soft_wrap=True)


def _read_tokens(path: Path | None) -> list[int] | None:
    """Token ids: a JSON list in a file. What is in it is checked by the import."""
    if path is None:
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ImportRejected("tokens", f"{path} is no JSON: {error}") from error
    if not isinstance(found, list):
        raise ImportRejected("tokens", f"{path} holds no JSON list of token ids")
    return found
