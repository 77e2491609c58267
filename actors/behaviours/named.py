"""Behaviours by their names, `module:Class`: so that another process can make one. Any thread."""

import importlib
import inspect
from collections.abc import Callable

from kvactors.actors.behaviours.behaviour import AgentBehaviour
from kvactors.core.errors import InvalidConfig

__all__ = ["behaviour_name", "checked_behaviour", "named_behaviour"]


def behaviour_name(behaviour: object) -> str:
    """The name of a behaviour that is given by it, or as the class. Raises InvalidConfig where that
    names no AgentBehaviour which a process may make that has nothing but the name."""
    name = behaviour
    if isinstance(behaviour, type):
        name = f"{behaviour.__module__}:{behaviour.__qualname__}"
    if not isinstance(name, str):
        raise InvalidConfig(
            f'behaviour is "module:Class", or that class, not {behaviour!r:.80}: each node makes '
            "one by its name"
        )
    found = named_behaviour(name)
    if behaviour not in (name, found):
        raise InvalidConfig(f"{name} is not {behaviour!r}: a node would not find it by that name")
    return name


def named_behaviour(name: str) -> type[AgentBehaviour]:
    """The class of a behaviour. Raises InvalidConfig."""
    found = checked_behaviour(name, _loaded(name), InvalidConfig)
    if found.blocking:
        raise InvalidConfig(
            f"{name} is blocking: in a cluster a behaviour must be able to end where it waits; "
            "write an async def, and run_blocking() for what blocks"
        )
    return found


def checked_behaviour(
    name: str, found: object, at: Callable[[str], Exception]
) -> type[AgentBehaviour]:
    """What was `found` by a `name`, if it is a behaviour that is made without arguments. Raises
    what `at` makes."""
    if not (isinstance(found, type) and issubclass(found, AgentBehaviour)):
        raise at(f"{name} is no subclass of AgentBehaviour, but {found!r:.80}")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise at(f"{name} is made without arguments: {error}") from error
    return found


def _loaded(name: str) -> object:
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise InvalidConfig(f"a behaviour is named module:Class, not {name!r}")
    try:
        found: object = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except (Exception, SystemExit) as error:  # Whatever somebody's module may do.
        raise InvalidConfig(
            f"the behaviour {name} cannot be imported here: {type(error).__name__}: {error}; it "
            "must be installed, or in a folder of $PYTHONPATH, wherever its agent may live"
        ) from error
    return found
