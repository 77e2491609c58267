"""The ASGI application and who may call it. The event loop's thread."""
