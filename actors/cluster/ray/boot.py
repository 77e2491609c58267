"""Ray's two actors, started: the directory beside the head, a node beside its own raylet. Both are
made anew where they died, over the files that they left."""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import ray
from ray.exceptions import ActorAlreadyExistsError, RayError

from kvactors.actors.cluster.machine.clock import MonotonicClock
from kvactors.actors.cluster.machine.journal import FileJournal, held_alone
from kvactors.actors.cluster.member.member import MemberOptions, open_member
from kvactors.actors.cluster.protocol.directory.server import Directory
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.cluster.protocol.wire import answered, pack
from kvactors.actors.cluster.ray.errors import ClusterUnreachable, NameTaken
from kvactors.actors.cluster.ray.lookup import NAMESPACE, look_up
from kvactors.actors.cluster.ray.raylet import NODE
from kvactors.actors.cluster.ray.shell import CONCURRENT, Shell
from kvactors.actors.cluster.ray.transport import RayTransport

__all__ = [
    "DIRECTORY",
    "LOOKS",
    "answers",
    "came",
    "read_settings",
    "start_actor",
    "start_directory",
    "start_node",
]

DIRECTORY = "directory"
LOOKS = 0.2
"""Seconds between two looks at whether a person has told to end."""


class DirectoryActor(Shell):
    """Holds the directory; its journal is in `folder`."""

    def __init__(self, folder: str, settings: bytes) -> None:
        self._folder = Path(folder)
        self._settings = settings
        super().__init__()

    async def begin(self) -> Directory:
        """Start it over its journal. Raises StoreLocked where another head has that."""
        self._lock = await held_alone(self._folder)
        journal = FileJournal(self._folder / "directory.journal", DIRECTORY)
        settings = Settings(**msgpack.unpackb(self._settings))
        directory = Directory(RayTransport(), MonotonicClock(), journal, settings)
        self.keep(directory.run())
        return directory

    async def settings(self) -> bytes:
        """Those of the cluster, packed."""
        return pack({"answer": msgpack.unpackb(self._settings)})


class NodeActor(Shell):
    """Holds a node, and with it an AgentSystem."""

    def __init__(self, options: bytes, settings: bytes) -> None:
        self._options = MemberOptions(**msgpack.unpackb(options))
        self._settings = Settings(**msgpack.unpackb(settings))
        super().__init__()

    async def begin(self) -> Any:
        """Load the model, open the store, join. Raises OtherDisk, OtherModel."""
        self._member = await open_member(self._options, self._settings, RayTransport())
        await self._member.node.begin()
        self.keep(self._member.node.run())
        return self._member.node

    async def leave(self) -> None:
        """End what runs, and write what is not written. Whose replicas are elsewhere goes on there
        at once."""
        self.stop()
        await self._member.node.leave()
        await self._member.close()


def start_directory(folder: Path, settings: Settings) -> Any:
    """On the head, with its journal in `folder`; its actor, which ends with the last reference to
    it."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = msgpack.packb(asdict(settings))
    return start_actor(DirectoryActor, DIRECTORY, NODE, str(folder), packed)


def start_node(options: MemberOptions, settings: Settings) -> Any:
    """On the raylet of its name; its actor. Raises NameTaken."""
    packed = msgpack.packb(asdict(options)), msgpack.packb(asdict(settings))
    return start_actor(NodeActor, options.name, f"{NODE}{options.name}", *packed)


def read_settings(seconds: float) -> Settings:
    """Those that the head was started with; one that only begins is waited for, so many `seconds`.
    Raises ClusterUnreachable."""
    until = time.monotonic() + seconds
    while True:
        try:
            left = max(1.0, until - time.monotonic())
            actor = look_up(DIRECTORY).result(left)
            return Settings(**answered(ray.get(actor.settings.remote(), timeout=left)))
        except (ValueError, RayError, TimeoutError) as error:
            if time.monotonic() > until:
                raise ClusterUnreachable(
                    "Ray runs there, and no directory: see to the head"
                ) from error
        time.sleep(0.1)


def start_actor(kind: type[Shell], name: str, resource: str, *arguments: object) -> Any:
    """One of this `kind` called `name`, made of `arguments`, where there is a `resource`. Ray makes
    another one where it dies. Raises NameTaken."""
    made = ray.remote(kind).options(
        name=name,
        namespace=NAMESPACE,
        num_cpus=0,
        resources={resource: 0.001},
        max_restarts=-1,
        max_concurrency=CONCURRENT,
    )
    try:
        return made.remote(*arguments)
    except ActorAlreadyExistsError as error:
        raise NameTaken(
            f"{name!r} runs in this cluster already: give this node another name (--name)"
        ) from error


def answers(actor: Any, hurry: Callable[[], object]) -> bool:
    """Wait until an `actor` has begun; False where somebody tells to `hurry` first. Raises
    ClusterError where it never will."""
    ready = actor.ready.remote()
    return came(ready, hurry) and answered(ray.get(ready)) is not None


def came(answer: Any, hurry: Callable[[], object]) -> bool:
    """Wait until `answer` is there; False where somebody tells to `hurry` first. A signal does not
    reach who waits in Ray itself."""
    while not ray.wait([answer], timeout=LOOKS)[0]:
        if hurry():
            return False
    return True
