"""The agents of an encrypted node: what they are asked arrives sealed, and what they say leaves
sealed."""

from kvactors.actors.cluster.host.host import SystemHost
from kvactors.actors.cluster.host.turns import Tell
from kvactors.actors.cluster.machine.seals import Seals
from kvactors.actors.cluster.protocol.behaviours import Behaviours
from kvactors.actors.cluster.protocol.errors import ClusterError
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.system.system import AgentSystem

__all__ = ["SealedHost"]


class SealedHost(SystemHost):
    """A SystemHost over `system` with its `behaviours`, behind `seals`; those open and seal what
    agents tell each other themselves. Its records and pieces are sealed by its store."""

    def __init__(
        self, system: AgentSystem, seals: Seals, behaviours: Behaviours | None = None
    ) -> None:
        super().__init__(system, behaviours)
        self._seals = seals

    async def begin(self, agent: str, options: Record) -> None:
        """See SystemHost; the `options` of `agent` are sealed, where it has any: a fork's are its
        parent's records."""
        given = self._seals.open_options(agent, options) if options else {}
        try:
            await super().begin(agent, given)
        except Exception as error:
            raise self._failed(agent, error) from error

    async def turn(self, agent: str, request: Record, tell: Tell | None) -> Record:
        """See SystemHost; the `request` of `agent`, its answer and what `tell` is told are
        sealed. One to withdraw is the node's own, and says nothing."""
        withdraws = request.get("kind") == "withdraw"
        given = request if withdraws else self._seals.open_request(agent, request)

        def tell_sealed(item: Record) -> None:
            assert tell is not None
            tell({"sealed": self._seals.item(agent, item)})

        try:
            answer = await super().turn(agent, given, tell and tell_sealed)
        except Exception as error:
            raise self._failed(agent, error) from error
        return self._seals.answer(agent, answer)

    def _failed(self, agent: str, error: Exception) -> Exception:
        known = isinstance(error, ClusterError)
        return error if known else self._seals.failure(agent, error)
