"""The computation of each side of the benchmarks: every option that affects a client's step is set explicitly."""

from __future__ import annotations

from typing import Any, NamedTuple

import tfp_bfl as bfl


class Side(NamedTuple):
    """A side of this library.

    Fields:
      kind: of the model, one of `models.KINDS`.
      inference, noise, optimizer, learning_rate, schedule, kl, temperature: of `clients.variational`; the schedule is
        "constant" or "inverse".
      rule: of the server.
      precision: one of `models.PRECISIONS`.
      engine: one of "tff" and "local".
    """

    kind: str
    inference: str
    noise: str
    optimizer: str
    learning_rate: float
    schedule: str
    kl: str
    temperature: float
    rule: str
    precision: str
    engine: str

    def training(self) -> dict[str, Any]:
        """Return the options of `clients.variational`."""
        rate = self.learning_rate
        return {
            "inference": self.inference,
            "noise": self.noise,
            "optimizer_fn": self.optimizer,
            "learning_rate": bfl.training.inverse_decay(rate) if self.schedule == "inverse" else rate,
            "kl": self.kl,
            "temperature": self.temperature,
        }

    def flags(self) -> list[str]:
        """Return the options of `tfp-bfl run`."""
        return [text for name, value in self._asdict().items() for text in (f"--{name.replace('_', '-')}", str(value))]


# As published, and what the peers compute: Flipout by backpropagation, Adam, the KL over the client's examples.
FLIPOUT = Side(
    kind="flipout",
    inference="backprop",
    noise="flipout",
    optimizer="adam",
    learning_rate=1e-3,
    schedule="constant",
    kl="client",
    temperature=1.0,
    rule="naive_weighted_average",
    precision="float32",
    engine="tff",
)
CURVATURE = FLIPOUT._replace(inference="curvature", noise="shared", kl="total", temperature=0.01)
# The default of `variational`: a test compares them.
DEFAULT = CURVATURE._replace(
    optimizer="momentum", learning_rate=0.03, schedule="inverse", rule="mean_precision_average"
)
_TFF = {
    "flipout": FLIPOUT,
    "flipout-bfloat16_noise": FLIPOUT._replace(precision="bfloat16_noise"),
    "flipout-bfloat16": FLIPOUT._replace(precision="bfloat16"),
    "default": DEFAULT,
    "deterministic": FLIPOUT._replace(kind="deterministic"),
    "deterministic-momentum": DEFAULT._replace(kind="deterministic", noise="flipout"),
    "curvature-adam": CURVATURE,
    "curvature-flipout": DEFAULT._replace(noise="flipout"),
    "natural": CURVATURE._replace(inference="natural", learning_rate=0.005),
    "ivon": CURVATURE._replace(inference="ivon", learning_rate=0.05),
}
SIDES = {**_TFF, **{f"{name}-local": side._replace(engine="local") for name, side in _TFF.items()}}
FIELDS = tuple(name for name in Side._fields if name not in ("schedule", "kl", "temperature"))


def legend(lines: dict[str, dict[str, Any]]) -> list[str]:
    """Return a table in Markdown of what each side computes.

    Args:
      lines: side -> what it computes by name, of `Side` or as a peer reports it; what has no value is left open.
    """
    text = [f"| side | {' | '.join(name.replace('_', ' ') for name in FIELDS)} |", "|---" * (1 + len(FIELDS)) + "|"]
    for side, line in lines.items():
        if line.get("kind") == "deterministic":
            line = {**line, "inference": "none", "noise": "none"}
        cells = ("" if line.get(name) is None else f"{line[name]}" for name in FIELDS)
        text.append(f"| {side} | {' | '.join(cells)} |")
    return text
