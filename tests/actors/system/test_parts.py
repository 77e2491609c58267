"""AgentSystem is made of parts: it offers what they do, and is none of them."""

import inspect

import pytest
from makers import OpenSystem

from kvactors.actors import Agent, AgentBehaviour, AgentSystem, InvalidInput, SystemStopped
from kvactors.actors.system.registry import AgentRegistry

WAIT = 60
OFFERED = {
    *(
        "agents",
        "backup",
        "chat",
        "check",
        "dead_letters",
        "export_agent",
        "find",
        "forget",
        "health",
    ),
    *("import_agent", "info", "known_agents", "prefetch", "publish", "spawn", "spec", "start"),
    *("stats", "stop", "swap_model", "trace", "wait_idle", "watch", "deactivate"),
}


def test_a_system_inherits_nothing_and_offers_what_it_always_did() -> None:
    assert AgentSystem.__bases__ == (object,)
    assert {name for name in vars(AgentSystem) if not name.startswith("_")} == OFFERED
    assert not [name for name in OFFERED if not getattr(AgentSystem, name).__doc__]


def test_what_a_part_does_is_offered_with_its_signature_and_bound_to_its_system(
    open_system: OpenSystem,
) -> None:
    one, other = open_system(store=False), open_system(store=False)

    assert inspect.signature(AgentSystem.spawn) == inspect.signature(AgentRegistry.spawn)
    assert one.spawn("alice") is one.find("alice") is one.parts.agents.find("alice")
    assert AgentSystem.find(one, "alice") is one.find("alice")
    assert other.find("alice") is None


def test_a_handle_of_before_its_agent_was_forgotten_is_nothing_to_fork(
    open_system: OpenSystem,
) -> None:
    system, other = open_system(store=False), open_system(store=False)
    before = system.spawn("alice")
    system.forget("alice")
    system.spawn("alice")

    with pytest.raises(SystemStopped, match="was forgotten or stopped"):
        system.spawn("child", from_=before)
    with pytest.raises(InvalidInput, match="another system"):
        other.spawn("child", from_=before)
    assert system.spawn("child", from_="alice").transcript().turns == ()


def test_children_of_children_end_and_leave_nothing_behind(open_system: OpenSystem) -> None:
    class Silent(AgentBehaviour):
        def on_message(self, message: object, sender: Agent | None) -> None:
            pass

    system = open_system(store=False)
    for name, parent in (("a", None), ("b", "a"), ("c", "b"), ("d", None)):
        system.spawn(name, behaviour=Silent(), parent=parent)

    ended = [system.watch(name) for name in "abc"]
    system.parts.behaviours.stop("a")

    assert [end.get(timeout=WAIT).agent_id for end in ended] == ["a", "b", "c"]
    assert list(system.parts.router.receivers()) == ["d"]
    assert system.wait_idle(WAIT)
    system.check()
