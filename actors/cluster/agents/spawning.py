"""How an agent of a cluster is spawned: by a program, or by another agent's behaviour. Not on a
thread that agents share."""

import xxhash

from kvactors.actors.behaviours.behaviour import AgentBehaviour
from kvactors.actors.behaviours.named import behaviour_name
from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.cluster.agents.requests import new_id
from kvactors.actors.cluster.host.requests import spawn_options
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.protocol.errors import UnknownAgent
from kvactors.actors.runtime.supervision import Supervision
from kvactors.actors.turns.checks import check_id, check_system_prompt
from kvactors.core.errors import InvalidConfig, InvalidInput
from kvactors.core.text import check_text

__all__ = ["find", "id_of", "spawn"]


def spawn(
    link: Link,
    agent_id: str,
    system_prompt: str | None = None,
    *,
    from_: str | ClusterAgent | None = None,
    group: str | None = None,
    behaviour: str | type[AgentBehaviour] | None = None,
    supervision: Supervision | None = None,
) -> ClusterAgent:
    """What `Cluster.spawn` says of `agent_id`, `system_prompt`, `from_`, `group`, `behaviour` and
    `supervision`, by `link`."""
    check_id(agent_id)
    check_text("agent_id", agent_id)
    check_system_prompt(system_prompt)
    named = _named(behaviour, supervision)
    if from_ is not None:
        if (system_prompt, group, named) != (None, None, None):
            raise InvalidConfig(
                "a fork has its parent's prompt and group, and no behaviour: leave them unset"
            )
        link.run(link.fork(id_of(from_), agent_id, new_id()))
        return ClusterAgent(agent_id, link)
    if group is not None and (not isinstance(group, str) or not group):
        raise InvalidInput(f"group must be a non-empty string, not {group!r}")
    if (system_prompt, group, named) == (None, None, None) and (there := find(link, agent_id)):
        return there
    options = spawn_options(system_prompt, behaviour=named, supervision=supervision)
    together = group or _beginning(system_prompt)
    link.run(link.client.spawn(agent_id, options, together, link.seconds))
    if named is not None:
        link.run(link.client.serve(agent_id, link.seconds))
    return ClusterAgent(agent_id, link)


def find(link: Link, agent_id: str) -> ClusterAgent | None:
    """One of the agents that `link` leads to, or None."""
    check_id(agent_id)
    try:
        link.run(link.client.ask("find", {"agent": agent_id}, link.seconds))
    except UnknownAgent:
        return None
    return ClusterAgent(agent_id, link)


def id_of(agent: str | ClusterAgent) -> str:
    """Of an agent that is given by it, or by a handle. Raises InvalidAgentId."""
    agent_id = getattr(agent, "agent_id", agent)
    check_id(agent_id)
    return str(agent_id)


def _named(
    behaviour: str | type[AgentBehaviour] | None, supervision: Supervision | None
) -> str | None:
    if supervision is not None and not isinstance(supervision, Supervision):
        raise InvalidConfig(f"supervision is a Supervision, not {supervision!r}")
    if supervision is not None and behaviour is None:
        raise InvalidConfig("supervision is of a behaviour: give that, too")
    if supervision is not None and supervision.on_error == "escalate":
        raise InvalidConfig(
            "an agent of a cluster has no parent to escalate to: restart, rewind or stop"
        )
    return None if behaviour is None else behaviour_name(behaviour)


def _beginning(system_prompt: str | None) -> str | None:
    return None if system_prompt is None else xxhash.xxh3_128_hexdigest(system_prompt.encode())
