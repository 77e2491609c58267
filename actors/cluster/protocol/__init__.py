"""Who owns an agent, and what may be acknowledged: no threads, no clock, no disk, no Ray of its own.
All of these are given (`interfaces.py`), so that a test decides what fails and when.
"""
