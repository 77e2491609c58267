"""Who listens to events, and how they are shown; never imports system. A listener is called on the
thread where it happened; what is recorded is read and drawn on any thread."""
