"""The resident guard: standard library only."""
