"""`/v1/responses` and `/v1/conversations`, as the openai package speaks them. The event loop, but
for the store's SQL."""
