"""Fixtures of the actors' tests: what agents are told, and a grid model of a user's own."""

import os
import sys
import threading
from typing import Any

import pytest

from kvactors.actors import AgentSystem
from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.testing import use_actors
from kvactors.actors.turns.messages_agent import Pause

# A console that is made where this is set keeps that width: tests set it for one command.
os.environ.pop("COLUMNS", None)


class Pauses(threading.Semaphore):
    """Released each time that an agent of a system that is heard was told to pause."""

    def hear(self, system: AgentSystem) -> None:
        """Before it starts."""
        told = self

        class Noted(AgentActor):
            def on_receive(self, message: Any) -> Any:
                answer = super().on_receive(message)
                if isinstance(message, Pause):
                    told.release()
                return answer

        use_actors(system, agent=Noted)


@pytest.fixture
def pauses() -> Pauses:
    """For `open_system(..., prepare=pauses.hear)`."""
    return Pauses(0)


@pytest.fixture
def no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if OpenTelemetry was not installed: that can be had in no other way in this process."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "kvactors.actors.system.observe.telemetry", raising=False)
