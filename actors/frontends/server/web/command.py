"""`kvactors serve`. What it needs beyond the command line's own is imported when it runs."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from kvactors.actors.frontends.console.options import Told, folder

__all__ = ["PORT", "commands", "ended_by_signal", "wait_for_signal"]

commands = typer.Typer()

PORT = 8017


@commands.command("serve")
def _serve(
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", help="A model directory or a hub name. [default: default]"),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            parser=folder,
            help="Where memories are kept. [default: $KVACTORS_HOME, ~/.kvactors]",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; another than a loopback one needs API keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = PORT,
    api_key_file: Annotated[
        Path | None, typer.Option(help="One key a line, mode 0600; read anew when it changes.")
    ] = None,
    alias: Annotated[
        list[str] | None, typer.Option(help="NAME=MODEL: a further name of the model.")
    ] = None,
    any_model: Annotated[
        bool, typer.Option("--any-model", help="Answer to any model's name.")
    ] = False,
    cors: Annotated[
        list[str] | None, typer.Option(help="An origin whose pages may call this server.")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="A further name of this host, behind a proxy: needs keys."),
    ] = None,
    rules: Annotated[
        Path | None, typer.Option(help="A TOML file of rules, beside the shipped ones.")
    ] = None,
    isolation: Annotated[
        str | None,
        typer.Option(
            help='"strict": agents share nothing, so that no timing tells. [default: shared]'
        ),
    ] = None,
    memory_budget: Annotated[
        str | None, typer.Option(help='Such as "8GB": KV and work space in memory.')
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens an agent may remember.")] = None,
    told: Told = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="host:port of a cluster that has the agents; its nodes have the model."),
    ] = None,
    keep: Annotated[
        str, typer.Option(help="How long agents without a name are kept: 30d, 12h, never.")
    ] = "30d",
    keep_bytes: Annotated[
        str | None, typer.Option(help='Such as "20GB": what those may take on disk.')
    ] = None,
) -> None:
    """Serve OpenAI's and Anthropic's interfaces: every client's conversation is an agent."""
    try:
        from kvactors.actors.frontends.server.web.command_run import run_server
    except ImportError as error:
        typer.echo(f"error: {error.name} is missing: pip install 'kvactors[serve]'", err=True)
        raise typer.Exit(2) from error
    run_server(
        home=(cluster, model),
        store=store,
        aliases=alias or (),
        rules=rules,
        keep=(keep, keep_bytes),
        key_file=api_key_file,
        engine={
            "isolation": isolation,
            "memory_budget": memory_budget,
            "context": context,
            "template_kwargs": told,
        },
        settings={
            "host": host,
            "port": port,
            "any_model": any_model,
            "origins": tuple(cors or ()),
            "names": tuple(name or ()),
        },
    )


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """Within it SIGTERM ends what runs as Ctrl-C does, but with status 0, until somebody waits for
    a signal."""

    def end(_number: int, _frame: Any) -> NoReturn:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def wait_for_signal() -> None:
    """Return at the first Ctrl-C or SIGTERM; a second Ctrl-C raises KeyboardInterrupt."""
    told = threading.Event()

    def tell(number: int, _frame: Any) -> None:
        if told.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        told.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, tell)
    while not told.wait(1):
        pass
