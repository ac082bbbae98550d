"""What requests cost in seconds, predicted from how fast this worker was so far. Pure.

A request's cost is its prefill (tokens of the prompt at the measured rate) and its answer (what answers had so far, but
no more than it may have). The engine tells both times at the end of every answer. Before the first nothing is known and
everything costs nothing: nobody is refused for a guess.
"""

from __future__ import annotations

from tidegate.gateway.assemble import MOST, Json, Object

_WEIGHT_OF_NEW = 0.2
#: Tokens; a shorter prefill or answer is mostly overhead.
_LEAST = 8


class Costs:
    """Learned rates of one model. Times are seconds, rates tokens a second."""

    def __init__(self) -> None:
        self.prefill: float | None = None
        self.generation: float | None = None
        #: Tokens of an answer.
        self.answer: float | None = None
        #: The sums of what finished requests were predicted and were measured to cost.
        self.predicted_s = 0.0
        self.measured_s = 0.0

    def predict(self, prompt_tokens: int, most_tokens: int | None) -> float:
        """Seconds of the worker's time for a request; ``most_tokens`` bounds its answer (None: nothing does)."""
        answer = self.answer or 0.0
        if most_tokens is not None:
            answer = min(answer, most_tokens)
        return (prompt_tokens / self.prefill if self.prefill else 0.0) + (
            answer / self.generation if self.generation else 0.0
        )

    def learn(self, timings: Json, *, predicted: float) -> None:
        """Take the engine's own ``timings`` of an answer that is complete."""
        if not isinstance(timings, dict):
            return
        prefill, prefill_s = _number(timings, "prompt_n"), _number(timings, "prompt_ms") / 1000
        answer, answer_s = _number(timings, "predicted_n"), _number(timings, "predicted_ms") / 1000
        if prefill >= _LEAST and prefill_s > 0:
            self.prefill = _moved(self.prefill, prefill / prefill_s)
        if answer >= _LEAST and answer_s > 0:
            self.generation = _moved(self.generation, answer / answer_s)
        if answer > 0:
            self.answer = _moved(self.answer, answer)
        if prefill_s + answer_s > 0:
            self.predicted_s += predicted
            self.measured_s += prefill_s + answer_s

    def to_json(self) -> Object:
        """For the status."""
        return {
            "prefill_tokens_per_s": round(self.prefill or 0.0, 1),
            "generation_tokens_per_s": round(self.generation or 0.0, 1),
            "answer_tokens": round(self.answer or 0.0),
            "predicted_s": round(self.predicted_s, 3),
            "measured_s": round(self.measured_s, 3),
        }


def _moved(before: float | None, new: float) -> float:
    return new if before is None else before + _WEIGHT_OF_NEW * (new - before)


def _number(values: Object, key: str) -> float:
    value = values.get(key)
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST
    return float(value) if good and isinstance(value, (int, float)) else 0.0
