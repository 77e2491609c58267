"""What goes wrong, and when: drawn."""

from collections.abc import Callable
from functools import partial
from random import Random

from kvactors.actors.cluster.testing.machines.process import Process
from kvactors.actors.cluster.testing.steps import Armed
from kvactors.actors.cluster.testing.world import DIRECTORY, World

__all__ = ["FAULTS", "STEPS", "early", "plan"]

# Where an armed fault may strike: before and after each call is answered, at each call that is
# made, before and after each write. What is streamed has no end that is seen here.
_NODE = "turn read cached confirm mend prepare release retire prefix align replicate digests piece"
_NODE += " cancel running fork begin serve"
_DIRECTORY = "join renew leave find whose told claim spawn offer name outdate move moved forget"
_DIRECTORY += " drain"
_METHODS = f"{_NODE} {_DIRECTORY}".split()
_WRITES = ["journal", "turn", "store", "set aside", "store piece", "forget", "store fork"]
# Those that nobody but clients calls.
_ASKED = {"turn", "cancel", "running", "cached", "confirm", "fork", "begin", "serve"}
_ASKED |= {"spawn", "move", "moved", "forget", "drain"}
STEPS = [
    *(f"{when} {what}" for when in ("before", "after") for what in [*_METHODS, *_WRITES]),
    *(f"calling {method}" for method in _METHODS if method not in _ASKED),
    *("before mail", "calling mail", "before stored"),
]
# Half of them strike where most is at stake.
HOT = [
    *("before turn", "after turn", "before store", "after store", "before set aside"),
    *("calling replicate", "after replicate", "after align", "after claim", "after release"),
    *("before prepare", "after prepare", "calling piece", "after piece"),
    *("calling name", "after name", "after move", "before journal", "after journal"),
]
# And where stores are told of, at the beginning. Of these, `found` needs stores that were restored.
FIRST = [
    *(f"{when} {what}" for when in ("before", "after") for what in ("whose", "found", "told")),
    *("calling whose", "calling found", "calling told", "before journal", "after journal"),
    *("after join", "before spawn", "before claim", "after align", "before forget"),
]
LONGEST = 9.0
PATIENCE = 90.0
"""Seconds for which the directory is tried to be told of a lost machine."""


def plan(world: World, seconds: float) -> None:
    """Some faults within so many seconds."""
    rng = world.rng
    world.network.late = rng.choice([0.0, 0.01, 0.1])
    world.network.twice = rng.choice([0.0, 0.02])
    for _ in range(rng.randint(1, 6)):
        fault = rng.choice(_FAULTS)
        world.loop.call_later(rng.uniform(0.5, seconds), partial(_strike, world, fault))
    for _ in range(rng.randint(0, 4)):
        strike = rng.choice([*_HERE, *_HERE[:2]])
        steps = rng.choice([STEPS, HOT])
        armed = Armed(rng.choice(steps), partial(_strike_here, world, strike), rng.randint(0, 6))
        world.loop.call_later(rng.uniform(0.0, seconds / 2), world.steps.armed.append, armed)


def _strike(world: World, fault: Callable[[World], None]) -> None:
    world.steps.struck[fault.__name__.strip("_")] += 1
    fault(world)


def _strike_here(world: World, strike: Callable[[World, Process], None], process: Process) -> None:
    world.steps.struck[strike.__name__.strip("_")] += 1
    strike(world, process)


def early(world: World, rng: Random) -> None:
    """Some of `rng` that strike `world` where its stores are told of."""
    for _ in range(rng.randint(1, 3)):
        strike = partial(_strike_here, world, rng.choice([_kill_here, _pause_here]))
        world.steps.armed.append(Armed(rng.choice(FIRST), strike, rng.randint(0, 3)))


def _for_a_while(world: World) -> float:
    return world.rng.choice([world.rng.uniform(0.1, 1.5), world.rng.uniform(1.5, LONGEST)])


def _node(world: World) -> str:
    return world.rng.choice(world.nodes)


def _kill_here(world: World, process: Process) -> None:
    world.loop.call_later(_for_a_while(world), world.start, process.name)
    world.kill(process.name)


def _pause_here(world: World, process: Process) -> None:
    world.loop.call_later(_for_a_while(world), world.resume, process.name)
    world.pause(process.name)


def _isolate_here(world: World, process: Process) -> None:
    _cut_off(world, process.name)


def _part_here(world: World, process: Process) -> None:
    """From one other machine."""
    other = world.rng.choice([name for name in world.machines if name != process.name])
    _cut(world, [(process.name, other), (other, process.name)])


def _slow_here(world: World, process: Process) -> None:
    _bad(world, process.name, "slow", 100.0, 1.0)


def _lossy_here(world: World, _: Process) -> None:
    _lossy(world)


def _lose_here(world: World, process: Process) -> None:
    """Its machine is gone, and does not come back: where that would be the only disk with some
    agent, it comes back after all. It is over by then."""
    if process.name == DIRECTORY:
        _kill_here(world, process)
        return
    world.kill(process.name)
    seconds = world.rng.uniform(1.5, 3.0) * world.settings.lease
    world.loop.call_later(seconds, _lose_or_start, world, process.name)


def _lose_or_start(world: World, name: str) -> None:
    directory = world.machines[DIRECTORY]
    registry = directory.server.registry
    lives = directory.process.alive and not directory.process.paused
    if not lives or registry.alive(name) or name not in world.nodes:
        world.start(name)
        return
    others = [
        place.replica if place.node == name else place.node
        for place in registry.places.values()
        if name in (place.node, place.replica) and not place.fresh
    ]
    untold = name in registry.untold
    last = untold and bool(world.machines[name].disk.files["ledgers"])
    # Both at once would be the agent.
    if not last and all(other in world.nodes for other in others):
        world.steps.struck["disk lost"] += 1
        world.lose(name)
        if untold:
            # Nobody else may say what it had: a person does.
            asked = world.client("operator").ask("drain", {"node": name, "on": True}, PATIENCE)
            world.loop.create_task(asked)
    else:
        world.start(name)


def _leave(world: World) -> None:
    """In good order: it says so, and ends a little later."""
    name = _node(world)
    world.say(f"leave {name}")
    machine = world.machines[name]
    machine.process.start(machine.server.leave())
    world.loop.call_later(world.rng.uniform(0.0, 0.1), _kill_here, world, machine.process)


def _lose(world: World) -> None:
    _lose_here(world, world.machines[_node(world)].process)


def _kill(world: World) -> None:
    _kill_here(world, world.machines[_node(world)].process)


def _kill_directory(world: World) -> None:
    _kill_here(world, world.machines[DIRECTORY].process)


def _kill_two(world: World) -> None:
    _kill(world)
    _kill(world)


def _pause(world: World) -> None:
    _pause_here(world, world.machines[_node(world)].process)


def _zombie(world: World) -> None:
    """Stands still past its lease, and the directory has been restarted when it goes on."""
    name, lease = _node(world), world.settings.lease
    world.pause(name)
    world.loop.call_later(1.5 * lease, world.kill, DIRECTORY)
    world.loop.call_later(1.6 * lease, world.start, DIRECTORY)
    world.loop.call_later(world.rng.uniform(1.7, 2.4) * lease, world.resume, name)


def _cut(world: World, pairs: list[tuple[str, str]]) -> None:
    world.say(f"cut {pairs}")
    world.network.cut.update(pairs)
    world.loop.call_later(_for_a_while(world), world.network.cut.difference_update, pairs)


def _isolate(world: World) -> None:
    """A node hears no other machine, but clients reach it: or one way only."""
    _cut_off(world, _node(world))


def _cut_off(world: World, name: str) -> None:
    others = [other for other in world.machines if other != name]
    away = [(name, other) for other in others]
    back = [(other, name) for other in others]
    _cut(world, world.rng.choice([away, back, away + back]))


def _part(world: World) -> None:
    names = list(world.machines)
    world.rng.shuffle(names)
    half = world.rng.randint(1, len(names) - 1)
    one, other = names[:half], names[half:]
    _cut(world, [pair for a in one for b in other for pair in ((a, b), (b, a))])


def _part_two(world: World) -> None:
    one, other = world.rng.sample(list(world.machines), 2)
    _cut(world, [(one, other), (other, one)])


def _lossy(world: World) -> None:
    world.say("lossy")
    world.network.lost = world.rng.choice([0.05, 0.3])
    world.loop.call_later(_for_a_while(world), setattr, world.network, "lost", 0.0)


def _bad_disk(world: World) -> None:
    name = world.rng.choice(list(world.machines))
    what, value, good = world.rng.choice(
        [("slow", 100.0, 1.0), ("full", True, False), ("failing", 0.4, 0.0)]
    )
    _bad(world, name, what, value, good)


def _bad(world: World, name: str, what: str, value: object, good: object) -> None:
    disk = world.machines[name].disk
    world.say(f"disk of {name} {what}")
    setattr(disk, what, value)
    world.loop.call_later(_for_a_while(world), setattr, disk, what, good)


_FAULTS: list[Callable[[World], None]] = [
    _kill,
    _kill,
    _kill_directory,
    _kill_two,
    _pause,
    _pause,
    _zombie,
    _zombie,
    _isolate,
    _isolate,
    _part,
    _part_two,
    _lossy,
    _bad_disk,
    _lose,
    _leave,
]
_HERE: list[Callable[[World, Process], None]] = [
    _kill_here,
    _pause_here,
    _isolate_here,
    _part_here,
    _slow_here,
    _lossy_here,
    _lose_here,
]
FAULTS = sorted({fault.__name__.strip("_") for fault in [*_FAULTS, *_HERE]} | {"disk lost"})
"""The names of all."""
