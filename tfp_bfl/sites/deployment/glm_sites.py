"""The sites of a linear model, as the server asks them: descriptions, sums, and checks of their answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files.arrays import stored_arrays, to_bytes
from tfp_bfl.glm.federation import TIMES, Question, answer_length
from tfp_bfl.glm.sums import PARTS, Sums, decode
from tfp_bfl.sites.deployment.attendance import SitesLeft
from tfp_bfl.sites.deployment.channel import MOST_BYTES, SUMS, TALK, collect, read_json
from tfp_bfl.sites.deployment.glm_job import CELLS, Answered, to_arrays
from tfp_bfl.sites.deployment.traffic import Counted
from tfp_bfl.sites.masks import KEY_BYTES

Forms = Mapping[str, tuple[type, tuple[int, ...]]]
# A site whose answers are not finite for more questions in a row leaves: each question after the first halves the step,
# and costs the other sites some of the numbers that they answer.
_MOST_NOT_FINITE = 6
NOT_FINITE = "its sums are not finite, or the coefficients exceed a bound that its log states"


class Sites:
    """Sites that answer questions (`glm.federation.Federation`).

    Args:
      channel: to the sites.
      asked: names of the sites.
      family: the name of the outcome's distribution.
      secure_sums: whether their answers are masked, so that only their sum can be read.
    """

    def __init__(self, channel: Counted, asked: Sequence[str], family: str, secure_sums: bool):
        self._family = family
        self._channel, self.asked, self.is_secure = channel, list(asked), secure_sums
        self.step, self.answered = 0, Answered()
        self.names: Sequence[str] = ()
        # Of the last sums at coefficients, without masks.
        self.parts: dict[str, Sums] = {}
        self.most_bytes = 0
        # Sites whose sums are subtracted; under masks they do it themselves.
        self.removed: Sequence[str] = ()
        # Numbers of an answer before the columns of the design are known.
        self.num_cells = 0
        # Sites with numbers in their last answer that are not finite.
        self.not_finite: Sequence[str] = ()
        self._in_a_row: dict[str, int] = {}

    @property
    def traffic(self) -> dict[str, dict[str, Any]]:
        """The messages and seconds of each site."""
        return self._channel.traffic

    @property
    def num_clients(self) -> int:
        """The number of sites."""
        return len(self.asked)

    def talk(self, messages: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the replies of the sites to messages in JSON, and the reasons of those that refuse."""
        content = {site: json.dumps(what).encode() for site, what in messages.items()}
        return collect(self._channel, TALK, content, lambda site, reply: read_json(reply))

    def total(self, question: Question) -> np.ndarray:
        """Implement `Federation.total`."""
        size = len(self.names)
        length = self.num_cells if question.kind == CELLS else answer_length(self._family, question, size)
        if self.is_secure:
            return self._masked_total(question, length)
        parts = self._answers(question, {"sums": (np.float64, (length,))}, "sums")
        # At coefficients that are too large sums of rows are not finite either.
        self.not_finite = [site for site, part in parts.items() if not np.all(np.isfinite(part))]
        self._in_a_row = {site: self._in_a_row.get(site, 0) + 1 for site in self.not_finite}
        wrong = [site for site, number in self._in_a_row.items() if number > _MOST_NOT_FINITE]
        if question.kind in (CELLS, "first", "columns"):
            wrong = [*self.not_finite]
        if wrong:
            raise SitesLeft(dict.fromkeys(wrong, NOT_FINITE))
        if question.kind == "sums":
            self.parts = {site: Sums.unpack(part, size) for site, part in parts.items()}
        signs = {site: -1 if site in self.removed else 1 for site in parts}
        total: np.ndarray = np.sum(np.stack([signs[site] * part for site, part in parts.items()]), 0)
        self.answered = Answered(total)
        return total

    def _masked_total(self, question: Question, length: int) -> np.ndarray:
        """Return the sum of masked answers; each site receives all of them with the next question."""
        proofs = np.uint8, (len(self.asked), KEY_BYTES)
        parts = self._answers(question, {"masked": (np.int64, (length + 1, PARTS)), "proofs": proofs})
        stacked = {name: np.stack([part[name] for part in parts.values()]) for name in ("masked", "proofs")}
        self.answered = Answered(**stacked)
        return decode(np.sum(stacked["masked"], 0, np.int64))

    def event_times(self) -> np.ndarray:
        """Implement `Federation.event_times`."""
        asked, form = Question(TIMES, np.zeros((1, len(self.names)))), {"sums": (np.float64, (-1,))}
        parts = self._answers(asked, form, "sums")
        wrong = [site for site, x in parts.items() if not (np.all(np.isfinite(x)) and np.all(np.diff(x) > 0))]
        if wrong:
            raise SitesLeft(dict.fromkeys(wrong, "its times of events are not finite and ascending"))
        times = np.unique(np.concatenate([*parts.values()]))
        self.answered = Answered(times)
        return times

    def _answers(self, question: Question, forms: Forms, only: str = "") -> dict[str, Any]:
        """Return the answer of each site, in the order of their names; -1 in a shape stands for any length.

        Args:
          question: of the fit.
          forms: name of an array -> its type and shape.
          only: name of the array to return alone; "" for all by name.
        """
        content = to_bytes(to_arrays(question, self.step, self.answered))
        self.step += 1
        parts, reasons = collect(
            self._channel, SUMS, dict.fromkeys(self.asked, content), lambda _, reply: self._read(reply, forms)
        )
        if reasons:
            raise SitesLeft(reasons)
        return {site: found[only] if only else found for site, found in parts.items()}

    def _read(self, reply: bytes, forms: Forms) -> dict[str, np.ndarray]:
        arrays = stored_arrays(reply, "answer", MOST_BYTES)
        is_whole = set(arrays) == set(forms)
        for name, (kind, shape) in forms.items() if is_whole else ():
            found = arrays.form(name)
            fits = len(found.shape) == len(shape) and all(n in (m, -1) for m, n in zip(found.shape, shape))
            is_whole = is_whole and found.dtype == kind and fits
        if not is_whole:
            raise InvalidArgument("its answer does not have the required form")
        self.most_bytes = max(self.most_bytes, len(reply))
        return {name: arrays[name] for name in forms}
