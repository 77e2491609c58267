"""The `kvactors` command. What a command does is in its own module, imported when it runs."""

import io
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kvactors.actors.frontends.cli.cluster_commands import commands as clustering
from kvactors.actors.frontends.cli.run import commands as running
from kvactors.actors.frontends.cli.store_commands import Json, Model, StoreDir, commands, text
from kvactors.actors.frontends.console.options import Told, folder, new_file, refuse
from kvactors.actors.frontends.server.web.command import commands as serving
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
            from kvactors.actors.frontends.console.console import complain

            complain(error)
            raise typer.Exit(FAILED) from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # Rich's own takes what stands in brackets for a style.
)

Only = Annotated[list[str] | None, typer.Option(help="What matches this name; may be repeated.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvactors {version('kvactors')}")
        raise typer.Exit


Version = typer.Option(
    "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
)


@app.callback()
def _options(_version: Annotated[bool, Version] = False) -> None:
    """LLM agents that own persistent 4-bit KV caches."""


@app.command()
def demo(
    agents: Annotated[int, typer.Option(min=1, max=1000, help="How many agents.")] = 6,
    store: Annotated[
        Path | None,
        typer.Option(
            parser=folder,
            help="Keep them here, and forget those of their names first.",
            show_default="a temporary one",
        ),
    ] = None,
    json: Json = False,
    model: Model = "default",
    trace: Annotated[
        Path | None,
        typer.Option(
            parser=new_file,
            help="Write a trace of both processes here, for https://ui.perfetto.dev.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(parser=new_file, help="Draw it as a timeline here (needs kvactors[plot])."),
    ] = None,
) -> None:
    """Tell agents facts, end the process, restore them in another one, and ask."""
    from kvactors.actors.frontends.cli.demo import run_demo

    raise typer.Exit(run_demo(agents, store, model, trace, plot, as_json=json))


@app.command()
def stress(
    context: typer.Context,
    agents: Annotated[int, typer.Option(min=2, max=1000, help="How many agents.")] = 64,
    minutes: Annotated[float, typer.Option(min=0.01, help="How long.")] = 5.0,
    seed: Annotated[int, typer.Option(help="Of everything that is random.")] = 1,
    faults: Annotated[
        str, typer.Option(help="all, none, or some of model,device,disk,restart,kill.")
    ] = "none",
    seeds: Annotated[
        str | None, typer.Option(help="Instead: deterministic runs of these seeds, such as 1..200.")
    ] = None,
    *,
    report: Annotated[
        Path | None,
        typer.Option(
            parser=new_file, help="Write a report here: JSON, or a table if its name ends in .md."
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            parser=folder,
            help="A new directory DIR: keep the agents in DIR/store.",
            show_default="a temporary one",
        ),
    ] = None,
) -> None:
    """Random work, with faults, and proof of what must hold. Status 1 on a violation."""
    from kvactors.actors.frontends.cli.stress import explore, run_stress

    if seeds is not None:
        own = ("agents", "minutes", "seed", "faults", "report", "store")
        refuse(context, own, "--seeds has agents, faults and stores of its own, and keeps nothing")
        well = explore(seeds)
    else:
        well = run_stress(agents, minutes, seed, faults, report, store)
    raise typer.Exit(0 if well else 1)


@app.command("stress-part", hidden=True)
def stress_part(agents: int, seconds: float, seed: int, faults: str, folder: Path) -> None:
    """One process of a stress test; prints its state as JSON lines."""
    from kvactors.actors.frontends.cli.stress import run_part

    run_part(agents, seconds, seed, faults, folder)


@app.command("demo-tell", hidden=True)
def demo_tell(agents: int, store: Path, model: str, trace: Path | None = None) -> None:
    """First process of the demo."""
    from kvactors.actors.frontends.console.console import err, progress
    from kvactors.actors.frontends.console.key import stored_key
    from kvactors.actors.frontends.demo.phases import tell

    forgotten = tell(agents, store, model, stored_key(), progress, trace)
    if forgotten:
        err.print(f"Agents of an earlier demo, forgotten first: {forgotten:,}.")


@app.command("demo-ask", hidden=True)
def demo_ask(agents: int, store: Path, model: str, trace: Path | None = None) -> None:
    """Second process of the demo; prints its entries as JSON."""
    from kvactors.actors.frontends.console.console import progress
    from kvactors.actors.frontends.console.key import stored_key
    from kvactors.actors.frontends.demo.phases import ask

    typer.echo(ask(agents, store, model, stored_key(), progress, trace))


@app.command(context_settings={"allow_extra_args": True})
def chat(
    context: typer.Context,
    agent: Annotated[str, typer.Option(parser=text, help="Who you talk to.")] = "assistant",
    model: Model = "default",
    store: StoreDir = None,
    system: Annotated[
        str | None,
        typer.Option(parser=text, help="System prompt of an agent that is new."),
    ] = None,
    *,
    max_tokens: Annotated[int, typer.Option(help="Where a reply is cut.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest word.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of what a temperature above 0 draws.")] = 0,
    told: Told = None,
) -> None:
    """Talk to an agent that remembers the next day. Status 1 if a line that was piped failed."""
    if context.args:
        who = text(context.args[0])
        context.fail(f"Got unexpected extra argument ({who}): say --agent {who} to talk to {who}")
    from kvactors.actors.frontends.cli.chat import run_chat
    from kvactors.actors.turns.options import AskOptions
    from kvactors.core.schedule.sampling import Sampling

    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, seed=seed)
    asked: AskOptions = {"sampling": sampling, "template_kwargs": told}
    well = run_chat(agent, model, store, system, asked)
    raise typer.Exit(0 if well else 1)


app.add_typer(commands)
app.add_typer(serving)
app.add_typer(running)
app.add_typer(clustering)


@app.command()
def top(
    store: StoreDir = None,
    once: Annotated[bool, typer.Option("--once", help="Print one screen and end.")] = False,
) -> None:
    """Watch a running system: agents by tier, tokens/s, queues, memory, turns."""
    from kvactors.actors.frontends.cli.top import run_top

    run_top(store, once=once)


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
def check(only: Only = None, json: Json = False) -> None:
    """Check on this machine what kvactors promises; a report. Status 1 on a violation."""
    from kvactors.actors.frontends.cli.bench import run_check

    raise typer.Exit(0 if run_check(only or [], as_json=json) else 1)


@app.command()
def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="Contexts 64 times shorter, two runs.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="More runs, and longer ones.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="A model directory or a hub name.", show_default="a random llama"
        ),
    ] = None,
    only: Only = None,
    plot: Annotated[
        Path | None, typer.Option(help="A directory for plots (needs kvactors[plot]).")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", parser=new_file, help="A file for the figures.")
    ] = None,
) -> None:
    """Measure side by side with mlx-lm; one table with targets."""
    from kvactors.actors.frontends.cli.bench import run_bench

    done = run_bench(model, quick=quick, full=full, only=only or [], plot=plot, json=json)
    raise typer.Exit(0 if done else 1)


def main() -> None:
    """Entry point of the console script."""
    _say_everything()
    app(prog_name="kvactors")


def _say_everything() -> None:
    """In a locale without UTF-8 what cannot be shown is escaped, and what is typed is UTF-8. Of
    bytes that are no text the rest is read."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        without = sys.stdin.errors == "surrogateescape"
        sys.stdin.reconfigure(encoding="utf-8" if without else None, errors="replace")
