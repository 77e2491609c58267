"""`/agents`: agents as they are, over HTTP. The event loop; what blocks has another thread."""
