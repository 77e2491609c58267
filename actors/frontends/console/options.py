"""Options of the command line that are looked at before any work is done."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from kvactors.core.conversation.turn import MOST_TOLD, check_template_kwargs
from kvactors.core.errors import InvalidInput
from kvactors.persistence.files.home import expanded

__all__ = ["Told", "folder", "new_file", "refuse", "template_kwargs"]


def folder(value: str) -> Path:
    """A folder, as an option names it. Raises BadParameter for an empty text: that would be the one
    where one is."""
    if not value:
        raise typer.BadParameter("an empty text names no folder: leave it out, or write '.'")
    return Path(value)


def template_kwargs(value: str) -> dict[str, Any]:
    """What a chat template is told, as an option says it: an object of JSON. Raises
    BadParameter."""
    try:
        found = json.loads(value)
        check_template_kwargs(found, InvalidInput, MOST_TOLD)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(
            f"""{error}: write JSON, such as '{{"enable_thinking": false}}'"""
        ) from error
    return found or {}


Told = Annotated[
    Any,
    typer.Option(
        "--template-kwargs",
        parser=template_kwargs,
        metavar="JSON",
        help="""Told to the chat template: '{"enable_thinking": false}', say.""",
    ),
]


def new_file(value: str) -> Path:
    """A file that is written at the end, as an option names it: in a folder that is there, and
    where it can be written. Raises BadParameter."""
    path = expanded(value)
    if path.is_dir():
        raise typer.BadParameter(f"{value!r} is a folder: name a file")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(path.parent)!r}: make it first")
    try:
        _try_to_write(path)
    except OSError as error:
        raise typer.BadParameter(f"{value!r} cannot be written: {error.strerror}") from error
    return path


def _try_to_write(path: Path) -> None:
    """Raise OSError where a file cannot be written; one that is there stays as it is."""
    if not path.exists():
        made = Path(os.path.realpath(path))
        made.open("xb").close()
        made.unlink()
    elif path.is_file():  # A pipe would wait for its reader.
        path.open("ab").close()


def refuse(context: typer.Context, names: Iterable[str], reason: str) -> None:
    """Raise InvalidInput, with the `reason`, if the command line of a `context` has options, by
    the `names` of their parameters, that would do nothing."""
    given = [name for name in names if _is_given(context, name)]
    if given:
        shown = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InvalidInput(f"{shown}: {reason}")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
