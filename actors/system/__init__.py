"""AgentSystem and its parts, held not inherited: registry, lifecycle, swap, exchange. On users'
threads, several at once."""
