"""The interfaces as their packages speak them: a body becomes an Inquiry, events become JSON or
server-sent events. The event loop's thread."""
