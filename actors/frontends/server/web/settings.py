"""Settings of a server, checked before anything is loaded."""

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from kvactors.actors.frontends.server.identity.rules import Rule, shipped_rules
from kvactors.actors.frontends.server.web.command import PORT
from kvactors.actors.frontends.server.web.guard import Gate, Limits
from kvactors.core.errors import InvalidConfig
from kvactors.core.numbers import number, whole
from kvactors.persistence.files.encryption import EncryptionKey

__all__ = ["Settings"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Seconds for running turns to finish, once it is told to stop.
GRACE = 30.0
# As a browser says it.
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^/?#@*\sA-Z]+")
# A name or an address; one of IPv6 as it stands in brackets.
_NAME = re.compile(r"[^/?#@*\s:\[\]]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server listens, and to whom.

    `host` and `port` (0: a free one), `names` further ones in Host that it answers to; any of these
    but a loopback one needs `keys`, which gives the API keys that count now. `origins` are other
    sites whose pages may call it. Requests may name the model by `aliases` too, or anyhow with
    `any_model`. `rules` say what in a system prompt is no difference. `most` turns may
    be open at once; `grace` seconds are left to them when it stops; `limits` bound a request.
    Agents without a name leave
    after `keep_seconds` without a turn, and while they take more than `keep_bytes` on disk.
    `encryption_key` is that of the system's store: what was said is sealed with it in the index.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    keys: Callable[[], Collection[str]] = tuple
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    any_model: bool = False
    rules: Sequence[Rule] = field(default_factory=shipped_rules)
    most: int = 1000
    grace: float = GRACE
    limits: Limits = field(default_factory=Limits)
    keep_seconds: float | None = None
    keep_bytes: int | None = None
    encryption_key: EncryptionKey | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (whole(self.most) or 0) < 1:
            raise InvalidConfig(f"most is {self.most!r}: one turn at least is open at once")
        grace = number(self.grace)
        if grace is None or not 0 <= grace < math.inf:
            raise InvalidConfig(f"grace is {self.grace!r}: seconds, not below 0, that have an end")
        if not callable(self.keys):
            raise InvalidConfig(
                f"keys is a {type(self.keys).__name__}: give what gives the keys that count now, "
                "such as `lambda: my_keys`"
            )
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise InvalidConfig(
                    f"{origin!r} is no origin: write each site as browsers do, "
                    "https://name or https://name:port, in lower case and without a path"
                )
        for name in self.names:
            if not _NAME.fullmatch(name):
                raise InvalidConfig(
                    f"{name!r} is no name of a host: write it as it stands in Host, without a "
                    "scheme, a port or a path"
                )
        # A name is a proxy's, and who asks that is whoever reaches it.
        for name in (self.host, *self.names):
            if name.lower() not in LOOPBACK and not self.keys():
                raise InvalidConfig(
                    f"{name} can be reached by others: give --api-key-file, or listen on 127.0.0.1 "
                    "without another --name"
                )

    def gate(self) -> Gate:
        """Who may pass."""
        hosts = {name.lower() for name in (*LOOPBACK, self.host, *self.names)}
        everywhere = self.host in ("0.0.0.0", "::")
        return Gate(
            frozenset() if everywhere else frozenset(hosts),
            frozenset(self.origins),
            self.keys,
            self.limits,
        )
