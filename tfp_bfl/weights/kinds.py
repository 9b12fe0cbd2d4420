"""Type parameters of what clients send, what rules make of it and what server steps keep."""

from typing import Any, NewType

from typing_extensions import TypeVar

from tfp_bfl.weights.model_weights import ModelWeights

# What a client sends to the rule, and what the rule gives the server step: `ModelWeights`, or another structure.
Sent = TypeVar("Sent", default=ModelWeights)
Given = TypeVar("Given", default=ModelWeights)
# The sums of a rule, the rows that a client keeps and the state of a server step: each its own affair.
Statistics = TypeVar("Statistics", default=Any)
Kept = TypeVar("Kept", default=Any)
State = TypeVar("State", default=Any)
# A mean and a variance over the clients in the place of point weights (`contracts.GAUSSIAN`).
ClientGaussian = NewType("ClientGaussian", ModelWeights)
