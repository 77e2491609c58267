"""The `kvactors` command. What a command does is in its own module, imported when it runs."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kvactors.actors.frontends.server.web.command import serve_command
from kvactors.core.errors import KvactorsError

__all__ = ["app", "main"]

INTERRUPTED = 130
FAILED = 2


class _Commands(TyperGroup):
    """Every error that a user can cause ends in one line and status 2, Ctrl-C in 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise  # The reader, such as `head`, has seen enough: typer ends quietly.
        except (KvactorsError, OSError) as error:
            from kvactors.actors.frontends.cli.console import complain

            complain(error)
            raise typer.Exit(FAILED) from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="LLM agents that own persistent 4-bit KV caches.",
)

Model = Annotated[str, typer.Option("--model", help='"default", a model directory or a hub name.')]
StoreDir = Annotated[
    Path | None, typer.Option("--store", help="Where memories are kept. [default: ~/.kvactors]")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvactors {version('kvactors')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    agents: Annotated[int, typer.Option(min=1, max=1000, help="How many agents.")] = 6,
    store: Annotated[
        Path | None,
        typer.Option(help="Keep them here, and forget an earlier demo's. [default: temporary]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    model: Model = "default",
    trace: Annotated[
        Path | None,
        typer.Option(help="Write a trace of both processes here, for https://ui.perfetto.dev."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw it as a timeline here (needs kvactors[plot]).")
    ] = None,
) -> None:
    """Tell agents facts, end the process, restore them in another one, and ask."""
    from kvactors.actors.frontends.cli.demo import run_demo

    raise typer.Exit(run_demo(agents, store, model, trace, plot, as_json=json))


@app.command()
def stress(
    agents: Annotated[int, typer.Option(min=2, max=1000, help="How many agents.")] = 64,
    minutes: Annotated[float, typer.Option(min=0.01, help="How long.")] = 5.0,
    seed: Annotated[int, typer.Option(help="Of everything that is random.")] = 1,
    faults: Annotated[
        str, typer.Option(help="all, none, or some of model,device,disk,restart,kill.")
    ] = "none",
    seeds: Annotated[
        str, typer.Option(help="Instead: deterministic runs of these seeds, such as 1..200.")
    ] = "",
    report: Annotated[
        Path | None, typer.Option(help="Write a report here: JSON, or a table if it is named *.md.")
    ] = None,
) -> None:
    """Random work, with faults, and proof of what must hold. Status 1 on a violation."""
    from kvactors.actors.frontends.cli.stress import explore, run_stress

    well = explore(seeds) if seeds else run_stress(agents, minutes, seed, faults, report)
    raise typer.Exit(0 if well else 1)


@app.command("stress-part", hidden=True)
def stress_part(agents: int, seconds: float, seed: int, faults: str, folder: Path) -> None:
    """One process of a stress test; prints its state as JSON lines."""
    from kvactors.actors.frontends.cli.stress import run_part

    run_part(agents, seconds, seed, faults, folder)


@app.command("demo-tell", hidden=True)
def demo_tell(agents: int, store: Path, model: str, trace: Path | None = None) -> None:
    """First process of the demo."""
    from kvactors.actors.frontends.cli.demo_phases import tell

    tell(agents, store, model, trace)


@app.command("demo-ask", hidden=True)
def demo_ask(agents: int, store: Path, model: str, trace: Path | None = None) -> None:
    """Second process of the demo; prints its entries as JSON."""
    from kvactors.actors.frontends.cli.demo_phases import ask

    typer.echo(ask(agents, store, model, trace))


@app.command()
def chat(
    agent: Annotated[str, typer.Option(help="Who you talk to.")] = "assistant",
    model: Model = "default",
    store: StoreDir = None,
    system: Annotated[
        str | None, typer.Option(help="System prompt of an agent that is new.")
    ] = None,
) -> None:
    """Talk to an agent that remembers the next day."""
    from kvactors.actors.frontends.cli.chat import run_chat

    run_chat(agent, model, store, system)


@app.command()
def agents(store: StoreDir = None) -> None:
    """List what is stored."""
    from kvactors.actors.frontends.cli.store import show_agents

    show_agents(store)


@app.command()
def inspect(
    agent: Annotated[str, typer.Argument(help="Whose transcript.")], store: StoreDir = None
) -> None:
    """Print an agent's transcript."""
    from kvactors.actors.frontends.cli.store import show_transcript

    show_transcript(agent, store)


@app.command("export")
def export_agent(
    agent: Annotated[str, typer.Argument(help="Whose memory.")],
    file: Annotated[Path, typer.Argument(help="The file to make; it must not exist.")],
    form: Annotated[
        str, typer.Option("--format", help="archive, q4-flat, q4-blocks, fp16-flat or mlx-lm.")
    ] = "archive",
    model: Annotated[
        str, typer.Option("--model", help="Name of the model, as it is to stand in the file.")
    ] = "default",
    fingerprint: Annotated[
        str | None, typer.Option(help="Which KV, where the agent has several: how it begins.")
    ] = None,
    store: StoreDir = None,
) -> None:
    """Write an agent to a file; loads no model."""
    from kvactors.actors.frontends.cli.exchange import run_export

    run_export(agent, file, form, model, fingerprint, store)


@app.command("import")
def import_agent(
    file: Annotated[Path, typer.Argument(help="What to read.")],
    agent: Annotated[str, typer.Option(help="Id of the new agent.")],
    form: Annotated[
        str | None, typer.Option("--format", help="Its format. [default: found out]")
    ] = None,
    model: Model = "default",
    tokens: Annotated[
        Path | None, typer.Option(help="JSON list of token ids, for KV whose file has none.")
    ] = None,
    store: StoreDir = None,
) -> None:
    """Make an agent of a file; an archive needs no model."""
    from kvactors.actors.frontends.cli.exchange import run_import

    run_import(file, agent, form, model, tokens, store)


care = typer.Typer(no_args_is_help=True, help="Check and clean what is stored.")
app.add_typer(care, name="store")


@care.command()
def verify(store: StoreDir = None) -> None:
    """Check every ledger, manifest and segment; status 1 if something is bad."""
    from kvactors.actors.frontends.cli.care import verify_store

    raise typer.Exit(0 if verify_store(store) else 1)


@care.command()
def gc(
    store: StoreDir = None,
    fingerprint: Annotated[
        list[str] | None,
        typer.Option(help="Also delete all KV of this model (the first digits are enough)."),
    ] = None,
) -> None:
    """Delete what crashes left and what was set aside."""
    from kvactors.actors.frontends.cli.care import clean_store

    clean_store(store, fingerprint or [])


@care.command()
def rm(
    agent: Annotated[str, typer.Argument(help="Who is forgotten for good.")],
    store: StoreDir = None,
) -> None:
    """Delete an agent: its ledger and its KV."""
    from kvactors.actors.frontends.cli.care import remove_agent

    remove_agent(agent, store)


@app.command()
def top(
    store: StoreDir = None,
    once: Annotated[bool, typer.Option("--once", help="Print one screen and end.")] = False,
) -> None:
    """Watch a running system: agents by tier, tokens/s, queues, memory, turns."""
    from kvactors.actors.frontends.cli.top import run_top

    run_top(store, once=once)


app.command("serve")(serve_command)


@app.command()
def info(
    model: Annotated[
        str, typer.Argument(help='"default", a model directory or a hub name.')
    ] = "default",
) -> None:
    """Load a model and show what its memory costs."""
    from kvactors.actors.frontends.cli.info import show_info

    show_info(model)


@app.command()
def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="Contexts 64 times shorter, two runs.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="More runs, and longer ones.")] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", help="A model directory or a hub name. [default: a random llama]"),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Regimes whose names match; may be repeated.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="A directory for plots (needs kvactors[plot]).")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="A file for the figures.")] = None,
) -> None:
    """Measure side by side with mlx-lm; one table with targets."""
    from kvactors.actors.frontends.cli.bench import run_bench

    run_bench(model, quick=quick, full=full, only=only or [], plot=plot, json=json)


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="kvactors")


if __name__ == "__main__":
    main()
