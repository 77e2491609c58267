"""The commands that read and write a store, and the options that several commands have."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvactors.actors.frontends.console.options import folder, new_file, refuse

__all__ = ["FormatName", "Json", "Model", "StoreDir", "commands", "text"]

# Those of kvactors.persistence.formats.registry, which is not loaded for a page of help.
FormatName = Literal["archive", "q4-flat", "q4-blocks", "fp16-flat", "mlx-lm"]


def text(value: str) -> str:
    """What was typed, as UTF-8 where the locale's encoding could not read it."""
    if not any("\udc80" <= character <= "\udcff" for character in value):
        return value
    try:
        return os.fsencode(value).decode("utf-8")
    except UnicodeError:
        return value


Model = Annotated[str, typer.Option("--model", help='"default", a model directory or a hub name.')]
StoreDir = Annotated[
    Path | None,
    typer.Option(
        "--store",
        parser=folder,
        help="Where memories are kept.",
        show_default="$KVACTORS_HOME, or ~/.kvactors",
    ),
]
AgentId = Annotated[str, typer.Argument(parser=text, help="Whose memory.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

commands = typer.Typer()
care = typer.Typer(no_args_is_help=True, help="Check and clean what is stored.")
commands.add_typer(care, name="store")


@commands.command()
def agents(store: StoreDir = None, *, json: Json = False) -> None:
    """List what is stored."""
    from kvactors.actors.frontends.cli.store import show_agents

    show_agents(store, as_json=json)


@commands.command()
def inspect(agent: AgentId, store: StoreDir = None, *, json: Json = False) -> None:
    """Print an agent's transcript."""
    from kvactors.actors.frontends.cli.store import show_transcript

    show_transcript(agent, store, as_json=json)


@commands.command("export")
def export_agent(
    agent: AgentId,
    file: Annotated[
        Path, typer.Argument(parser=new_file, help="The file to make; it must not exist.")
    ],
    form: Annotated[FormatName, typer.Option("--format", help="What to write.")] = "archive",
    model: Annotated[
        str | None,
        typer.Option(help="Whose KV it is, as it is to stand in the file; an archive needs none."),
    ] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="Which KV, where the agent has several: how it begins.")
    ] = None,
    store: StoreDir = None,
) -> None:
    """Write an agent to a file; loads no model."""
    from kvactors.actors.frontends.cli.exchange import run_export

    run_export(agent, file, form, model, fingerprint, store)


@commands.command("import")
def import_agent(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="What to read.")],
    agent: Annotated[str, typer.Option(parser=text, help="Id of the new agent.")],
    form: Annotated[
        FormatName | None,
        typer.Option("--format", help="What it is.", show_default="found out"),
    ] = None,
    model: Model = "default",
    tokens: Annotated[
        Path | None, typer.Option(help="JSON list of token ids, for KV whose file has none.")
    ] = None,
    *,
    store: StoreDir = None,
    of_this_model: Annotated[
        bool, typer.Option("--of-this-model", help="KV whose file names no model is of this one.")
    ] = False,
) -> None:
    """Make an agent of a file; an archive needs no model."""
    from kvactors.actors.frontends.cli.exchange import import_archived, import_kv, needs_model

    if needs_model(file, form):
        import_kv(file, agent, form, model, tokens, store, of_this_model=of_this_model)
        return
    unused = ("model", "tokens", "of_this_model")
    refuse(context, unused, f"{file} is an archive, which needs no model and has its token ids")
    import_archived(file, agent, store)


@care.command()
def verify(store: StoreDir = None, *, json: Json = False) -> None:
    """Check every ledger, manifest and segment; status 1 if something is bad."""
    from kvactors.actors.frontends.cli.care import verify_store

    raise typer.Exit(0 if verify_store(store, as_json=json) else 1)


@care.command()
def gc(
    store: StoreDir = None,
    fingerprint: Annotated[
        list[str] | None,
        typer.Option(help="Also delete all KV of this model (the first digits are enough)."),
    ] = None,
) -> None:
    """Delete what crashes left, and damaged KV that was set aside."""
    from kvactors.actors.frontends.cli.care import clean_store

    clean_store(store, fingerprint or [])


@care.command()
def rm(
    agent: AgentId,
    store: StoreDir = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask at a terminal.")] = False,
) -> None:
    """Delete an agent: its ledger, its KV, and what a server knows of it. It is forgotten for
    good."""
    from kvactors.actors.frontends.cli.care import remove_agent

    remove_agent(agent, store, asks=not yes)


Where = Annotated[str, typer.Argument(help="Such as s3://bucket/folder or file:///folder.")]


@care.command()
def backup(
    where: Where,
    store: StoreDir = None,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Read all that is there, and mend what is damaged.")
    ] = False,
) -> None:
    """Copy what an object store lacks of this one there; status 1 if an agent cannot be read."""
    from kvactors.actors.frontends.cli.care import back_up_store

    raise typer.Exit(0 if back_up_store(where, store, check=check) else 1)


@care.command()
def restore(
    where: Where,
    store: StoreDir = None,
    snapshot: Annotated[str | None, typer.Option(help="Which.", show_default="the latest")] = None,
    part: Annotated[
        str, typer.Option(help="Of its agents: 2/3 is the second of three.", show_default="all")
    ] = "1/1",
    *,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out agents whose objects are damaged.")
    ] = False,
) -> None:
    """Make a new store of a backup; status 1 if an agent was left out."""
    from kvactors.actors.frontends.cli.care import restore_store

    whole = restore_store(where, store, snapshot, part, skip_damaged=skip_damaged)
    raise typer.Exit(0 if whole else 1)
