"""Regimes of decode steps that do more than one token a row: flat ones, drafts, grammars."""
