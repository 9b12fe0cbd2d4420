"""The published tables as programs: one file for each, run at its size, or scaled down for a rehearsal."""
