"""The bytes of rows that run together, and how they enter and leave (pieces, wire)."""
