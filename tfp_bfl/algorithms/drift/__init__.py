"""Corrections of client drift: SCAFFOLD, FedDyn and FedNova."""
