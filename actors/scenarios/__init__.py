"""Simulations as files: a scenario is read and checked, run, recorded, gone on with, replayed.

Asks the system for nothing that a user could not ask it for, and knows no tensors.
"""
