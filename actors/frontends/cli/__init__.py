"""The command `kvactors`: one module for each of its commands. On the main thread."""
