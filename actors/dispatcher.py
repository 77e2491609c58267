"""PooledActor: pykka actors that share few threads."""

from kvactors.actors.runtime.dispatcher import (
    Dispatcher,
    PooledActor,
    SystemActor,
    handles,
    offer,
    send,
    send_stop,
)

__all__ = ["Dispatcher", "PooledActor", "SystemActor", "handles", "offer", "send", "send_stop"]
