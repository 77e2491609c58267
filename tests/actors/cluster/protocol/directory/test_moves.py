"""Whom a person may send where, and why not."""

import pytest
from machine import Machine

from kvactors.actors.cluster.protocol.errors import NodeUnavailable, UnknownNode


def test_a_node_that_takes_nobody_is_told_from_one_that_never_came(machine: Machine) -> None:
    machine.joins("n1")
    machine.spawns()
    machine.joins("n2", "n3")
    machine.ask("drain", node="n2", on=True)
    machine.ask("leave", node="n3", incarnation=1)

    with pytest.raises(UnknownNode, match="no node 'n4' has joined"):
        machine.ask("move", agent="alice", target="n4")
    for target in ("n2", "n3"):
        with pytest.raises(NodeUnavailable, match=f"'{target}' takes no agents: it is away or d"):
            machine.ask("move", agent="alice", target=target)
    assert machine.ask("moved", agent="alice")["over"]
