"""A command of ours in a process of its own."""

import sys

__all__ = ["child_command"]

# Ctrl-C reaches a child too, and may come before its command line can handle it.
_START = """
try:
    from kvactors.actors.cli import main
    main()
except KeyboardInterrupt:
    raise SystemExit(130) from None
"""


def child_command(*arguments: object) -> list[str]:
    """What runs `kvactors` with these `arguments`."""
    # -P: what lies in the working directory is no module of ours.
    return [sys.executable, "-P", "-c", _START, *map(str, arguments)]
