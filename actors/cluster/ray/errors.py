"""What can go wrong between this process and Ray."""

from kvactors.core.errors import KvactorsError

__all__ = ["ClusterUnreachable", "NameTaken", "RayletFailed", "WrongToken"]


class ClusterUnreachable(KvactorsError):
    """Nobody answers at the address of a cluster."""


class NameTaken(KvactorsError):
    """Another node of the cluster runs under this name."""


class RayletFailed(KvactorsError):
    """Ray's processes on this machine did not start, or have ended."""


class WrongToken(KvactorsError):
    """The cluster has another token than this process."""
