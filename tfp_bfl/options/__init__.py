"""The options of the algorithms, each declared once: a field of a group with type, default, help, limits and names.

A group is a dataclass, an algorithm a `methods.Method` with its groups. The configuration of a run, the command line,
sweeps, tuning, help and completion follow from these. TensorFlow is imported where arguments are made.
"""
