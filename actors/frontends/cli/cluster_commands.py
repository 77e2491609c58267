"""`kvactors node` and `kvactors cluster`. What they need is imported when they run."""

from pathlib import Path
from typing import Annotated

import typer

from kvactors.actors.frontends.cli.store_commands import Json, Model, text
from kvactors.actors.frontends.console.options import Told, folder, refuse

__all__ = ["commands"]

PORT = 6379

commands = typer.Typer()
care = typer.Typer(no_args_is_help=True, help="See and change a cluster of machines.")
commands.add_typer(care, name="cluster")

Address = Annotated[
    str | None,
    typer.Option(
        "--address", help="host:port of the head.", show_default="$RAY_ADDRESS, or this machine"
    ),
]


@commands.command()
def node(
    context: typer.Context,
    store: Annotated[
        Path,
        typer.Option(
            "--store", parser=folder, help="Where this node keeps memories; its own alone."
        ),
    ],
    *,
    head: Annotated[bool, typer.Option("--head", help="Begin a cluster.")] = False,
    join: Annotated[
        str | None, typer.Option("--join", help="host:port of the head of a cluster.")
    ] = None,
    model: Model = "default",
    name: Annotated[
        str | None,
        typer.Option(parser=text, help="In the cluster.", show_default="this host's"),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Where others reach this machine; but for 127.0.0.1 Ray listens on all of its own."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of a head.")] = PORT,
    durable: Annotated[
        str, typer.Option(help='On how many nodes a turn is kept: "one" or "two". The head\'s.')
    ] = "two",
    lease: Annotated[
        float, typer.Option(min=0.1, help="Seconds until a silent node's agents go on elsewhere.")
    ] = 3.0,
    memory_budget: Annotated[
        str | None, typer.Option(help='Such as "8GB": KV and work space in memory.')
    ] = None,
    told: Told = None,
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="Fix the order of sums.")
    ] = False,
) -> None:
    """Make this machine a node of a cluster of machines, until Ctrl-C."""
    from kvactors.actors.frontends.cli.cluster import serve_node

    if join is not None:
        refuse(
            context, ("port", "durable", "lease"), "of the head alone: a node that joins asks it"
        )
    serve_node(
        head=head,
        join=join,
        member=(name, store, model),
        address=(host, port),
        settings={"durable": durable, "lease": lease},
        engine={
            "memory_budget": memory_budget,
            "reproducible": reproducible,
            "template_kwargs": told,
        },
    )


@care.command()
def status(address: Address = None, *, json: Json = False) -> None:
    """Show the nodes, and what each has."""
    from kvactors.actors.frontends.cli.cluster import show_status

    show_status(address, as_json=json)


@care.command()
def drain(
    node: Annotated[str, typer.Argument(parser=text, help="Its name.")],
    address: Address = None,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Let agents come again.")] = False,
) -> None:
    """Bring all agents of a node to others: before it is switched off."""
    from kvactors.actors.frontends.cli.cluster import drain_node

    drain_node(node, address, undo=undo)


@care.command()
def backup(
    where: Annotated[str, typer.Argument(help="Such as s3://bucket/folder.")],
    address: Address = None,
) -> None:
    """Copy what an object store lacks of all agents there; status 1 if one cannot be read."""
    from kvactors.actors.frontends.cli.cluster import back_up_cluster

    raise typer.Exit(0 if back_up_cluster(where, address) else 1)


@care.command()
def move(
    agent: Annotated[str, typer.Argument(parser=text, help="Its id.")],
    to: Annotated[
        str | None, typer.Option(parser=text, help="A node.", show_default="the least loaded")
    ] = None,
    address: Address = None,
) -> None:
    """Bring one agent, with its memory, to another node."""
    from kvactors.actors.frontends.cli.cluster import move_agent

    move_agent(agent, to, address)
