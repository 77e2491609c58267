"""The command `kvactors`, and `python -m kvactors.actors.cli`."""

from kvactors.actors.frontends.cli.app import app, main

__all__ = ["app", "main"]

if __name__ == "__main__":
    main()
