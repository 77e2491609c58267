"""Who asks, and what that agent knows already: conversations are found by what they say, not by how
it was rendered. Any thread; the index, one at a time."""
