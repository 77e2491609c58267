"""What goes on beside a forward, since it is told of before that runs."""

import threading
from typing import Any

from makers import OpenSystem

from kvactors.actors import AgentSystem, Sampling
from kvactors.actors.testing import FaultyModel, use_actors, use_store
from kvactors.actors.turns.messages_gpu import Step
from kvactors.actors.workers.gpu import GpuActor
from kvactors.persistence.store.store import Store

WAIT = 60
# So long is it looked for what never comes if it waits for the forward.
SOON = 10


def test_kv_is_read_from_the_disk_while_others_are_computed(
    open_system: OpenSystem,
) -> None:
    before = open_system(FaultyModel())
    before.spawn("warm").ask([3] * 40).get(timeout=WAIT).cached.get(timeout=WAIT)
    before.stop()
    model, gate, reading = FaultyModel(), threading.Event(), threading.Event()

    class Held(GpuActor):
        """Holds the forward of the step in which a turn is admitted."""

        def on_receive(self, message: Any) -> Any:
            if isinstance(message, Step) and message.request.agent_id == "warm":
                model.arm(hold=gate)
            return super().on_receive(message)

    class Watched(Store):
        def read_kv(self, agent_id: str, fingerprint: str, *, used: bool = True) -> Any:
            reading.set()
            return super().read_kv(agent_id, fingerprint, used=used)

    def prepare(system: AgentSystem) -> None:
        use_actors(system, gpu=Held)
        use_store(system, Watched)

    system = open_system(model, prepare=prepare)
    busy = system.spawn("busy")
    answer = busy.ask([1], sampling=Sampling(max_tokens=5000))
    while not system.stats()["generated_tokens"]:
        assert not answer.done

    turn = system.spawn("warm").ask([2])
    try:
        assert model.reached.wait(WAIT)
        assert reading.wait(SOON)
    finally:
        gate.set()
    assert turn.get(timeout=WAIT).cache == "warm"
    busy.cancel()
