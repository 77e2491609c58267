"""What an agent's system raised on another machine, as what it was there."""

from kvactors.actors.cluster.protocol.errors import HostFailed
from kvactors.core.errors import KvactorsError, TurnFailed

__all__ = ["as_known"]


def as_known(error: HostFailed) -> KvactorsError:
    """An error of the class that it had there, with its message; TurnFailed where that is none of
    kvactors'."""
    kind = _kinds(KvactorsError).get(error.fields["kind"])
    if kind is None:
        return TurnFailed(str(error))
    known = kind.__new__(kind)
    known.args = (error.fields["message"],)
    return known


def _kinds(root: type[KvactorsError]) -> dict[str, type[KvactorsError]]:
    found = {root.__name__: root}
    for kind in root.__subclasses__():
        found |= _kinds(kind)
    return found
