"""Agents that live where there is room, on one machine or several, and move with their memory.

What Ray does not have is here: who owns an agent, with which memory, and what survives.
"""
