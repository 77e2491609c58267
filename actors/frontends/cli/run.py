"""`kvactors run` and `kvactors diff`: what they need is imported when they run."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from kvactors.actors.cluster.protocol.errors import ClusterError
from kvactors.actors.errors import StorageError
from kvactors.actors.frontends.console.console import err, out, printable
from kvactors.actors.frontends.console.key import key_file
from kvactors.core.errors import EngineDied, InvalidConfig
from kvactors.persistence.files.home import expanded

if TYPE_CHECKING:
    from kvactors.actors.scenarios.journal.records import Run

__all__ = ["commands"]

commands = typer.Typer()

# Lines of differences that are shown of two runs.
SHOWN = 20


def _print_schema(wanted: bool) -> None:  # noqa: FBT001
    """Instead of all else, the schema of scenario files."""
    if wanted:
        out.out(
            json.dumps(_scenarios().json_schema(), indent=1, ensure_ascii=False), highlight=False
        )
        raise typer.Exit


@commands.command("run")
def _run(
    scenario: Annotated[
        Path, typer.Argument(help="A scenario file; to go on, replay or fork, a run's folder.")
    ],
    *,
    seed: Annotated[
        str | None, typer.Option(help="Seeds instead of the file's: 3, or 1..20.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="path=value, such as agents.trader.count=5; may be repeated."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model instead of the file's.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="A new folder. [default: NAME-1, NAME-2, …]")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a run was cut off.")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="Run what is recorded again, without a model.")
    ] = False,
    from_: Annotated[
        int | None, typer.Option("--from", min=1, help="Go on otherwise from this step.")
    ] = None,
    lockstep: Annotated[
        bool, typer.Option("--lockstep", help="No round begins before the last one has ended.")
    ] = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            is_eager=True,
            callback=_print_schema,
            help="Print the JSON schema of scenario files, for an editor.",
        ),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(help="host:port of a cluster whose agents take part, with its nodes' model."),
    ] = None,
) -> None:
    """Run a scenario: agents, phases, probes; its journal, tables and report. Status 1 if a step
    failed."""
    assert not schema  # It was printed instead.
    changed = [*(settings or ()), *([] if seed is None else [f"seeds={seed}"])]
    changed += [] if model is None else [f"model={model}"]
    if folder is not None:
        folder = expanded(folder)
    if sum((resume, replay, from_ is not None)) > 1:
        raise InvalidConfig("--resume, --replay and --from are three different things: take one")
    if (resume or replay) and changed:
        raise InvalidConfig("what goes on or is replayed is as it was: leave out other options")
    if resume and scenario.is_dir() and folder not in (None, scenario):
        raise InvalidConfig("a run goes on in its own folder: leave out --out")
    if replay and lockstep:
        raise InvalidConfig("what is replayed waits for nobody: leave out --lockstep")
    if replay:
        if cluster is not None:
            raise InvalidConfig("what is replayed needs no agents: leave out --cluster")
        where = folder or _new_folder(f"{scenario.resolve().name}-replay")
        _show(_scenarios().replay_run(scenario, where), where)
    elif resume:
        where = folder or scenario
        _go_on(
            where,
            cluster,
            lambda known, **given: known.resume_run(where, lockstep=lockstep, **given),
        )
    elif from_ is not None:
        where, step = folder or _new_folder(f"{scenario.resolve().name}-fork"), from_
        _go_on(
            where,
            cluster,
            lambda known, **given: known.fork_run(
                scenario, step, where, settings=changed, lockstep=lockstep, **given
            ),
        )
    elif scenario.is_dir():
        raise InvalidConfig(
            f"{scenario} is a folder: name a scenario's file; a run goes on with --resume, and is "
            "run again with --replay, or with --from STEP"
        )
    else:
        loaded = _scenarios().Scenario.load(scenario, settings=changed)
        where = folder or _new_folder(loaded.words.name)
        _go_on(where, cluster, lambda _, **given: loaded.run(out=where, lockstep=lockstep, **given))


def _go_on(where: Path, cluster: str | None, run: "Callable[..., list[Run]]") -> None:
    """Run what there is to run in a folder, with agents of the `cluster` of this address if it has
    one, show it, and say how to go on if it is cut off."""
    if cluster is None and key_file() is not None:
        err.print("A run is not encrypted, whatever KVACTORS_KEY_FILE says.", soft_wrap=True)
    try:
        with _system(cluster) as system, _progress() as watch:
            runs = run(_scenarios(), system=system, watch=watch)
    except (KeyboardInterrupt, StorageError, EngineDied, OSError, ClusterError):
        if (where / "runs").exists():
            there = "" if cluster is None else f" --cluster {cluster}"
            err.print(f"Go on with: kvactors run {where} --resume{there}", soft_wrap=True)
        raise
    _show(runs, where)


@contextmanager
def _system(cluster: str | None) -> Iterator[Any]:
    """The agents of a cluster as a run sees them; None: the run has a system of its own."""
    if cluster is None:
        yield None
        return
    made = _scenarios().ClusterSystem
    from kvactors.actors.cluster.cluster import Cluster

    with Cluster.connect(cluster) as connected:
        yield made(connected)


@commands.command("diff")
def _diff(
    left: Annotated[Path, typer.Argument(help="A run's folder.")],
    right: Annotated[Path, typer.Argument(help="Another one's.")],
) -> None:
    """Say where two runs part, and which runs only one folder has. Status 1 if there is any."""
    scenarios = _scenarios()
    found = scenarios.compare_runs(left, right)
    for label, differences in found.items():
        if not differences:
            out.print(f"{label}: the same", highlight=False)
            continue
        first = differences[0]
        if first.what == "run":
            where = left if first.left == "there" else right
            out.print(f"{label}: only {where} has it", highlight=False, soft_wrap=True)
            continue
        steps = len({difference.step for difference in differences})
        out.print(f"{label}: they part at step {first.step}; {steps} steps differ", soft_wrap=True)
        for one in differences[:SHOWN]:
            text = (
                f"  {one.step} {one.agent}, {one.phase}, {one.what}: {one.left!r} | {one.right!r}"
            )
            out.print(Text(printable(text)), soft_wrap=True)
    raise typer.Exit(1 if any(found.values()) else 0)


def _scenarios() -> Any:
    """The module of scenarios. Raises InvalidConfig without what it needs."""
    try:
        from kvactors.actors.scenarios import scenario
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("kvactors"):
            raise
        raise InvalidConfig(
            f"scenarios need the package {error.name!r}: pip install 'kvactors[scenarios]'"
        ) from error
    return scenario


def _new_folder(name: str) -> Path:
    number = 1
    while Path(f"{name}-{number}").exists():
        number += 1
    return Path(f"{name}-{number}")


@contextmanager
def _progress() -> Iterator[Callable[[int, Any], None]]:
    """A bar on stderr if it is a terminal: agents, turns, tokens/s, time left; call what is yielded
    with each record."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[said]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
    counts: Counter[str] = Counter()
    agents: set[str] = set()
    with bar:
        task = bar.add_task("loading", total=None, said="")

        def watch(expected: int, record: Any) -> None:
            agents.add(getattr(record, "agent", ""))
            counts["turns"] += hasattr(record, "answer") and not record.part
            counts["tokens"] += getattr(record, "generated_tokens", 0)
            counts["tokens"] += getattr(record, "prefilled_tokens", 0)
            seconds = bar.tasks[0].elapsed or 1
            said = f"{len(agents - {''})} agents, {counts['turns']:,} turns, "
            said += f"{counts['tokens'] / seconds:,.0f} tokens/s"
            bar.update(task, description="running", said=said, total=expected or None)
            bar.update(task, completed=counts["turns"])

        yield watch


def _show(runs: "list[Run]", where: Path) -> None:
    """The table of the runs, and where everything is. Raises typer.Exit with status 1 if steps
    failed."""
    from kvactors.actors.scenarios.results.tables import over_seeds, summary

    rows = summary(over_seeds(runs, whole=True))
    table = Table(box=None, pad_edge=False)
    for name in rows[0] if rows else ():
        table.add_column(name)
    for row in rows[1:]:
        table.add_row(*(Text(printable(cell)) for cell in row))
    out.print(table)
    failures = sum(len(run.failures) for run in runs)
    if failures:
        err.print(f"{failures:,} steps failed: they are in the report.")
    err.print(f"Everything is in {where}.", soft_wrap=True)
    if failures:
        raise typer.Exit(1)
