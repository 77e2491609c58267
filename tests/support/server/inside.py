"""What is behind a server of tests."""

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server

__all__ = ["system_of"]


def system_of(server: Server) -> AgentSystem:
    """The one that has its agents."""
    assert isinstance(server.service.system, AgentSystem)
    return server.service.system
