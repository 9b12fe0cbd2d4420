"""The options of a run: their names, types, defaults and help, and what a run resolves them to."""
