"""How a test lets a system prove its bookkeeping."""

from kvactors.actors import AgentSystem
from kvactors.actors.messages import Check

__all__ = ["prove"]


def prove(system: AgentSystem) -> None:
    """Blocks, hot caches and rows are as counted. Raises AssertionError."""
    system._crew.ask(system._crew.gpu, Check())
