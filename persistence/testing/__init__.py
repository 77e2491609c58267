"""Disks that fail, hold, lie, lose power; public."""
