"""`ray start` as a child process: it ends when its standard input does. Arguments: Ray's own."""

import os
import signal
import sys
import threading


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run it."""
    from ray.scripts.scripts import main as ray_main

    from kvactors.actors.cluster.ray.quirks import as_written

    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = ["ray", "start", *sys.argv[1:]]
    with as_written():
        ray_main()


if __name__ == "__main__":
    main()
