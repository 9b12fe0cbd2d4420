"""Several runs: sweeps, lists, tables and reports that compare them."""
