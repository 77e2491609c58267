"""The server under the traffic of its clients: traces in their wire shape, and what they cost."""
