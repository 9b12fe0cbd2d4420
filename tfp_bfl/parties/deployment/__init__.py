"""Federations of real parties: what each does, and NVIDIA FLARE, which carries their messages."""
