"""What is told who brings agents to a node that goes meanwhile: by a directory of a script."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvactors.actors.cluster.cluster import Cluster
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.machine.loop import LoopThread
from kvactors.actors.cluster.protocol.errors import NodeUnavailable, NoRoom
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.records import Place, Settings

ANN = Place("ann", "one", 1, 3, None, None, 1, {})


class Script:
    """A transport to a directory of two nodes, of which the other one goes once it was asked to
    take agents, if it `goes`; none of them is ever moved."""

    def __init__(self, *, goes: bool) -> None:
        self._goes = goes
        self._two = True

    async def call(
        self, to: str, method: str, record: Record, *, within: float | None = None
    ) -> Record:
        assert to == "directory"
        if method in ("drain", "move"):
            self._two = not self._goes
        node = {"alive": True, "draining": False, "agents": 1, "bytes": 0, "waiting": 0}
        answers: dict[str, Any] = {
            "stats": {"nodes": {"one": node, "two": node | {"alive": self._two}}},
            "find": ANN.to_record(),
            "moved": {"over": True, "place": ANN.to_record()},
        }
        return dict(answers.get(method, {}))

    def stream(self, to: str, method: str, record: Record) -> AsyncIterator[Record]:
        raise AssertionError("nobody streams here")


@contextmanager
def directed(*, goes: bool) -> Iterator[Cluster]:
    loop = LoopThread("directed")
    link = Link(loop, Script(goes=goes), Settings(), 5)
    with Cluster(link, loop.stop) as cluster:
        yield cluster


def test_a_drain_ends_when_the_last_other_node_goes() -> None:
    with directed(goes=True) as cluster, pytest.raises(NoRoom):
        cluster.drain("one")


@pytest.mark.parametrize(("goes", "told"), [(True, NodeUnavailable), (False, NoRoom)])
def test_who_could_not_be_moved_is_told_of_the_node(
    goes: bool,
    told: type[Exception],
) -> None:
    with directed(goes=goes) as cluster, pytest.raises(told):
        cluster.migrate("ann", "two")
