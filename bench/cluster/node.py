"""One node in a process of its own, until its standard input ends: with whoever started it."""

import json
import sys
import threading
from typing import Any

from kvactors.actors.cluster.member.member import MemberOptions
from kvactors.actors.cluster.protocol.records import Settings

__all__ = ["main"]


def main() -> None:
    """Run the node that the first argument describes, as JSON. Main thread."""
    from kvactors.actors.cluster.ray.command import NodeCommand, run_node

    told: dict[str, Any] = json.loads(sys.argv[1])
    member, settings = MemberOptions(**told.pop("member")), Settings(**told.pop("settings"))
    command = NodeCommand(member=member, settings=settings, **told)
    run_node(command, _ended().is_set, print)


def _ended() -> threading.Event:
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended
