"""The sums of `tfp_bfl.glm` as TensorFlow graphs in float64, for engines whose workers run no Python.

Nothing in `tfp_bfl.glm` imports this package; the engine tff does.
"""

from tfp_bfl.glm.graphs.answers import answer, encode
from tfp_bfl.glm.graphs.cox import event_times, union

__all__ = ["answer", "encode", "event_times", "union"]
