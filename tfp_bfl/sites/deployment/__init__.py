"""Federations of real sites: what each does, and NVIDIA FLARE, which carries their messages."""
