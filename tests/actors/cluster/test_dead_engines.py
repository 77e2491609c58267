"""A node whose engine has died: others answer for its agents."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from together import Together

from kvactors import Cluster, ClusterAgent
from kvactors.actors.testing import FaultyModel
from kvactors.core.errors import EngineDied
from kvactors.core.schedule.sampling import Sampling

WAIT = 60
SHORT = Sampling(max_tokens=3)
LOST = "[METAL] Command buffer execution failed: Caused GPU Timeout Error"

OpenNodes = Callable[..., Together]


class Unloadable(FaultyModel):
    """One whose device is gone once it was lost: it cannot be loaded again."""

    def __init__(self) -> None:
        super().__init__()
        self._gone = False

    def __call__(self) -> tuple[Any, Any]:
        if self._gone:
            raise OSError("the device is gone")
        return super().__call__()

    def lose(self) -> None:
        """At the next forward."""
        self._gone = True
        self.arm(step=0, error=RuntimeError(LOST))


def test_a_turn_under_way_where_the_engine_dies_is_taken_by_the_replica(
    open_nodes: OpenNodes,
) -> None:
    models = {name: Unloadable() for name in ("one", "two")}
    nodes = open_nodes("one", "two", models=models)
    ann = nodes.cluster.spawn("ann")
    ann.ask([1, 2], sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT)
    lost, heir = nodes.cluster.place(ann).node, nodes.cluster.place(ann).replica

    models[lost].lose()
    reply = ann.ask([3, 4], sampling=SHORT).get(timeout=WAIT)

    assert len(reply.token_ids) == SHORT.max_tokens
    assert nodes.cluster.place(ann).node == heir
    assert isinstance(nodes.ended(lost), EngineDied)
    assert not nodes.cluster.stats()["nodes"][lost]["alive"]
    asked = [turn.token_ids for turn in ann.transcript().turns if not turn.is_answer]
    assert asked == [(1, 2), (3, 4)]


def test_so_is_one_that_streams(open_nodes: OpenNodes) -> None:
    models = {name: Unloadable() for name in ("one", "two")}
    nodes = open_nodes("one", "two", models=models)
    ann = nodes.cluster.spawn("ann")
    ann.ask([1, 2], sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT)

    models[nodes.cluster.place(ann).node].lose()
    stream = ann.stream([3, 4], sampling=SHORT)

    assert "".join(piece.text for piece in stream) == stream.reply.text


@pytest.mark.parametrize(
    "ask",
    [
        lambda ann: ann.ask([3, 4], sampling=SHORT).get(timeout=WAIT),
        lambda ann: list(ann.stream([3, 4], sampling=SHORT)),
    ],
)
def test_a_cluster_of_one_process_says_at_once_that_its_engine_died(
    tmp_path: Path, ask: Callable[[ClusterAgent], object]
) -> None:
    model = Unloadable()
    with Cluster.local(model, store=tmp_path / "store") as cluster:  # type: ignore[arg-type]
        ann = cluster.spawn("ann")
        ann.ask([1, 2], sampling=SHORT).get(timeout=WAIT)

        model.lose()
        with pytest.raises(EngineDied, match="GPU Timeout"):
            ask(ann)
