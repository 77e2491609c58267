"""The agents of a cluster, as a run sees those of a system. Any thread."""

from types import SimpleNamespace

from kvactors.actors.cluster.cluster import Cluster, ClusterAgent
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.schema import ScenarioWords

__all__ = ["ClusterSystem"]


class ClusterSystem:
    """What a run needs of an AgentSystem, of a `cluster`: its nodes have the model and the engine.
    `info.name` is that model's."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.info = SimpleNamespace(name=cluster.model)

    def check(self, words: ScenarioWords) -> None:
        """Raise InvalidScenario for what only a system of the run's own can do."""
        own = [
            *(f"engine.{name}" for name in sorted(words.engine.model_fields_set)),
            *(f"swap_model of phase {phase.name!r}" for phase in words.phases if phase.swap_model),
            *(f"restart of phase {phase.name!r}" for phase in words.phases if phase.restart),
        ]
        if own:
            raise InvalidScenario(
                f"{', '.join(own)}: the nodes of a cluster have an engine and a model as they were "
                "started with; leave that out, or run it without a cluster"
            )
        if "model" in words.model_fields_set and words.model != self.info.name:
            raise InvalidScenario(
                f"model is {words.model!r}, and the nodes of this cluster run {self.info.name!r}: "
                "leave it out, or start them with the other one"
            )

    def known_agents(self) -> list[ClusterAgent]:
        """All of them."""
        return self._cluster.agents()

    def spawn(
        self, agent_id: str, system_prompt: str | None = None, *, from_: ClusterAgent | None = None
    ) -> ClusterAgent:
        """The agent `agent_id`, with this `system_prompt`, or a fork of `from_`."""
        return self._cluster.spawn(agent_id, system_prompt, from_=from_)

    def forget(self, agent_id: str) -> None:
        """Delete one."""
        self._cluster.forget(agent_id)
