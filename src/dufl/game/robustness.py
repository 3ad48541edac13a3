"""A robust offer: its cost over the law's uncertainty, and what it would be worth to know more."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dufl.formatting import money, number
from dufl.game.information import TERMS
from dufl.game.parameters import Offer

Robust = Literal["expected", "worst"]
PILOTS = {
    "volume": "with more or less data (other payments)",
    "staleness": "with older or fresher data (other conservation rates)",
    "flow": "with as much data that is collected faster or slower",
}
LITTLE = 1e-3  # the share of the cost below which knowing the law is worth nothing


@dataclass(frozen=True)
class Judged:
    """An offer and its cost over the law's uncertainty."""

    payment: float
    conservation_rate: float
    expected_cost: float
    worst_cost: float

    @property
    def offer(self) -> Offer:
        """(R, θ)."""
        return Offer(payment=self.payment, conservation_rate=self.conservation_rate)


@dataclass(frozen=True)
class Robustness:
    """How an offer was chosen under the law's uncertainty, and what not knowing the law costs.

    Attributes:
        kind: "expected" or "worst".
        laws: the number of laws that stand for the uncertainty.
        chosen: the robust offer.
        plain: the best offer for the estimated law.
        known_cost: the expected cost if the law were known before the offer is made.
        value_of: what it is worth to know the "law", or one of its terms alone, in advance, in U.
        payment_weight: γ: money is worth this much of U.
        loss_weight: (1−γ)·Σ_t κ1^(T−1−t): the mean loss is worth this much of U.
        num_rounds: T.
        unit: of the law.
    """

    kind: Robust
    laws: int
    chosen: Judged
    plain: Judged
    known_cost: float
    value_of: Mapping[str, float]
    payment_weight: float
    loss_weight: float
    num_rounds: int
    unit: str

    @property
    def expected_regret(self) -> float:
        """What not knowing the law costs, in U."""
        return max(self.chosen.expected_cost - self.known_cost, 0.0)

    @property
    def next_pilot(self) -> str | None:
        """The term that is worth most to know; None if knowing the law would hardly save anything."""
        best = max(TERMS, key=lambda term: self.value_of[term])
        little = self.value_of["law"] <= LITTLE * abs(self.chosen.expected_cost)
        return None if little or self.value_of[best] == 0 else best

    @property
    def advice(self) -> str:
        """Which pilot is worth most, in words."""
        whole, first = self.text(self.value_of["law"]), self.next_pilot
        if first is None:
            return f"No other pilot is worth much: knowing the law exactly would save {whole}."
        others = [(term, self.value_of[term]) for term in TERMS if term != first and self.value_of[term] > 0]
        named = "".join(f", the {term} term {self.text(value)}" for term, value in others)
        saved = self.text(self.value_of[first])
        return (
            f"Another pilot {PILOTS[first]} is worth most: knowing the {first} term would save {saved}{named}"
            f", the whole law {whole}."
        )

    def text(self, cost: float) -> str:
        """A part of U as money over all rounds, or as loss if money has no weight."""
        if self.payment_weight > 0:
            return money(cost / self.payment_weight)
        loss = cost / self.loss_weight
        return (
            f"{number(100 * loss)} points" if self.unit == "error" else f"{number(loss)} of the {self.unit}"
        )

    def amounts(self, cost: float) -> dict[str, float | None]:
        """A part of U, as money over the run and per round, and as mean loss; None if it has no weight."""
        worth = cost / self.payment_weight if self.payment_weight > 0 else None
        return {
            "cost": cost,
            "money": worth,
            "money_per_round": None if worth is None else worth / self.num_rounds,
            "loss": cost / self.loss_weight if self.loss_weight > 0 else None,
        }

    def summary(self) -> dict[str, Any]:
        """Everything in plain numbers."""
        return {
            "kind": self.kind,
            "laws": self.laws,
            "expected_cost": self.chosen.expected_cost,
            "worst_cost": self.chosen.worst_cost,
            "plain": asdict(self.plain),
            "known_cost": self.known_cost,
            "expected_regret": self.amounts(self.expected_regret),
            "value_of": {term: self.amounts(value) for term, value in self.value_of.items()},
            "next_pilot": self.next_pilot,
            "advice": self.advice,
        }
