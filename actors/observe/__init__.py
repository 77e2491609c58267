"""Who listens to events, and how they are shown; never imports system."""
