"""What an agent's system raised on another machine, as what it was there."""

from kvactors.actors.cluster.protocol.errors import ClusterError, HostFailed
from kvactors.core.errors import KvactorsError, TurnFailed

__all__ = ["as_known", "known_kind"]


def as_known(error: HostFailed) -> KvactorsError:
    """An error of the class that it had there, with its message; TurnFailed where that is none of
    kvactors'."""
    found = known_kind(error.fields["kind"], error.fields["message"])
    return TurnFailed(str(error)) if found is None else found


def known_kind(name: str, message: str) -> KvactorsError | None:
    """An error of kvactors of the class of this `name`, with this `message`; None: none is."""
    if (kind := _kinds(KvactorsError).get(name)) is None:
        return None
    known = kind.__new__(kind)
    known.args = (message,)
    if isinstance(known, ClusterError):
        # Its message is what crossed.
        known.fields = {}
    return known


def _kinds(root: type[KvactorsError]) -> dict[str, type[KvactorsError]]:
    found = {root.__name__: root}
    for kind in root.__subclasses__():
        found |= _kinds(kind)
    return found
