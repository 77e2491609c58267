"""Counts of a running system, from all who count."""

from dataclasses import asdict

from kvactors.actors.agents.host import AgentHost
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.system.registry import AgentRegistry
from kvactors.actors.turns.messages_gpu import ReadStats
from kvactors.actors.turns.messages_store import CountStored
from kvactors.persistence.store.listing import StoreCounts

__all__ = ["read_stats"]


def read_stats(lifecycle: Lifecycle, host: AgentHost, agents: AgentRegistry) -> dict[str, int]:
    """What `AgentSystem.stats` returns: the engine and the store are asked through `lifecycle`,
    `host` names the model, `agents` are counted. Raises SystemStopped, EngineDied."""
    lifecycle.require_running()
    engine, in_memory = lifecycle.ask(lifecycle.gpu, ReadStats())
    counts = {"agents": len(agents), "outstanding_turns": len(lifecycle.outstanding.turns())}
    return {**counts, **engine, **_stored(lifecycle, host, agents, in_memory)}


def _stored(
    lifecycle: Lifecycle, host: AgentHost, agents: AgentRegistry, in_memory: frozenset[str]
) -> dict[str, int]:
    """What the store holds; without one, every agent that is not in memory is cold."""
    if lifecycle.persistence is None:
        known = {actor.agent_id for actor in agents.actors() if actor.transcript.turns}
        return asdict(StoreCounts(cold_agents=len(known - in_memory)))
    message = CountStored(host.info.fingerprint, in_memory)
    found: dict[str, int] = lifecycle.ask(lifecycle.persistence, message)
    return found
