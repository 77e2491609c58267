"""`/v1/responses` and `/v1/conversations`, as the openai package speaks them. The thread of the
event loop, but for the store's SQL."""
