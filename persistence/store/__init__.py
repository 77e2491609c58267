"""The store as a whole: open, commit, fork, sweep, verify."""
