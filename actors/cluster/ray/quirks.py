"""What Ray does that nobody asked for, undone: its own names, of the versions in pyproject.toml."""

from collections.abc import Iterator
from contextlib import contextmanager

from ray._private import ray_constants, services

__all__ = ["as_written"]


@contextmanager
def as_written() -> Iterator[None]:
    """Within it Ray starts and connects as it is told.

    It takes "127.0.0.1" for the address by which others reach this machine, while a head there
    listens on the loopback address alone: what joins it waits for ten minutes and gives up. And
    under `uv run` it would send the whole working directory to every node.
    """
    resolve, packs = services.resolve_ip_for_localhost, ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV
    services.resolve_ip_for_localhost = lambda host: host
    ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
    try:
        yield
    finally:
        services.resolve_ip_for_localhost = resolve
        ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = packs
