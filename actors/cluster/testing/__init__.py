"""A cluster under one seed: its time, messages, disks and failures are drawn, and an
oracle that knows nothing of the protocol watches what clients are told. One thread, one loop.
"""
