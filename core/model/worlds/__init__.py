"""Worlds of facts that the default model is trained and examined on."""
