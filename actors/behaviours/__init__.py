"""Agents that send each other messages: what they may do, who delivers, who restarts."""
