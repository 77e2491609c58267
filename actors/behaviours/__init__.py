"""Agents that send each other messages: what they may do, who delivers, who restarts. A behaviour
and its context run on one pool thread at a time; what they share, on any thread."""
