"""The token that all machines of a cluster share. Ray reads it; without it anyone who reaches a
port could run programs."""

import os
import secrets
from pathlib import Path

from ray._raylet import Config

from kvactors.core.errors import InvalidConfig

__all__ = ["require_token", "token_file", "token_source"]

_PLACES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def token_source() -> str:
    """Where this process has its token from, in words: a variable, or a file."""
    return next((name for name in _PLACES if os.environ.get(name)), str(token_file()))


def require_token(*, make: bool) -> bool:
    """See to it that there is a token, and that Ray asks for it. Where there is none, `make` one:
    whether it was made. Raises InvalidConfig."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if os.environ["RAY_AUTH_MODE"] != "token":
        raise InvalidConfig(
            f"RAY_AUTH_MODE is {os.environ['RAY_AUTH_MODE']!r}: without a token a cluster runs "
            'what anyone sends it; unset it, or set it to "token"'
        )
    # Ray has read the variable when it was imported. Not before this: a cluster that this process
    # is in already would be called without its token from then on.
    Config.initialize("")
    if any(os.environ.get(name) for name in _PLACES) or token_file().exists():
        return False
    if not make:
        raise InvalidConfig(
            f"there is no token: put the head's {token_file()} there on this machine, or set "
            "RAY_AUTH_TOKEN"
        )
    token_file().parent.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(token_file(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return True


def token_file() -> Path:
    """Where Ray looks for it, without a variable that says otherwise."""
    return Path.home() / ".ray" / "auth_token"
