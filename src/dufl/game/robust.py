"""Offers for a loss law that is known only up to its uncertainty, and what knowing more would be worth.

The law is one of M plausible ones, which are equally likely (see `law_draws`). With U(R, θ; i), the server's
cost under the i-th law at the clients' equilibrium, which does not depend on the law,

    expected    minimizes  mean_i U(R, θ; i)
    worst       minimizes  max_i U(R, θ; i)

What not knowing costs is the expected regret of the chosen offer (R*, θ*): its expected cost, less what the
server would pay on average if it knew the law,

    mean_i U(R*, θ*; i) − mean_i min_{R, θ} U(R, θ; i).

For the offer with the least expected cost this is the value of perfect information (see `information`).
The minima per law are taken over a grid of offers that is refined around them, and over the chosen offers.
A large population is represented by a few types of clients.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dufl.errors import InputError
from dufl.game import leader as leaders
from dufl.game.compression import compress
from dufl.game.dynamics import Array, staleness
from dufl.game.information import known_cost, values
from dufl.game.law_draws import LawDraws, draw_laws
from dufl.game.loss import PowerLaw, scarcity_of
from dufl.game.mean_field import SMALLEST
from dufl.game.parameters import Competition, Game, Offer
from dufl.game.robustness import Judged, Robust, Robustness
from dufl.game.search import FINE, SCANNED, Choice, Progress, Square, polished
from dufl.game.utility import available, forgetting

Pair = tuple[float, float]  # R, θ
Costs = dict[Pair, Array]  # U under every law, by offer
GRID = (17, 13)  # payments and conservation rates
OFFERS = 480  # that are judged by all laws, at most
CLOSEST = 1e-3  # distance of two offers, on the unit square
AROUND = np.array([(u, v) for u in (-1, 0, 1) for v in (-1, 0, 1) if u or v])


def check_robust(game: Game, method: str, goals: Sequence[str] = ()) -> PowerLaw:
    """The law of a game, if a robust offer makes sense; otherwise an error that says why not."""
    if "accuracy" in goals:
        rule = "left out with accuracy: that plan holds with 90 % confidence over the law's uncertainty"
        raise InputError.of("robust", rule, None, text="both")
    if method != "stackelberg":
        raise InputError.of("robust", "left out unless method is 'stackelberg'", method, text=repr(method))
    law = game.loss
    if not isinstance(law, PowerLaw) or law.covariance is None:
        rule = "left out unless game.loss is a law with a covariance: run `dufl calibrate` first"
        raise InputError.of("robust", rule, None, text="no such law")
    ranges = (game.payment_range, game.conservation_range)
    if all(low == high for low, high in ranges):
        raise InputError.of(
            "robust", "left out if payment and conservation rate are fixed", ranges, text="both"
        )
    return law


def robust_offer(
    game: Game,
    kind: Robust,
    plain: Offer,
    competition: Competition = "mean-field",
    progress: Progress = lambda _: None,
) -> Robustness:
    """The offer with the least expected or worst cost over the law's uncertainty.

    Args:
        game: with a law that has a covariance.
        kind: "expected" or "worst".
        plain: the best offer for the estimated law.
        competition: of the clients.
        progress: called with the share of the work that is done.
    """
    draws = draw_laws(check_robust(game, "stackelberg"))
    uncertain = _Uncertain(game, competition, draws)
    usual = (plain.payment, plain.conservation_rate)
    offers = [usual]
    grid: Costs = {}
    if len(draws) > 1:
        offers.append(uncertain.search(kind, lambda share: progress(0.5 * share)))
        grid = uncertain.refined(offers[-1], lambda share: progress(0.5 + 0.4 * share))
        least = game.payment_range[0], game.conservation_range[1]
        offers += [_best(kind, grid), least]  # the last is no update, if that is allowed
    known = {offer: uncertain.costs(*offer, FINE) for offer in offers}
    if len(draws) > 1:
        polished = uncertain.polished(kind, _best(kind, known))
        known[polished] = uncertain.costs(*polished, FINE)
    progress(1.0)
    chosen = _best(kind, known)
    table = np.array([*known.values(), *grid.values()])
    table = table[np.isfinite(table).all(axis=1)] if np.isfinite(table).all(axis=1).any() else table
    return Robustness(
        kind=kind,
        laws=len(draws),
        chosen=_judged(chosen, known[chosen]),
        plain=_judged(usual, known[usual]),
        known_cost=known_cost(table),
        value_of=values(table, draws),
        payment_weight=game.payment_weight,
        loss_weight=float(uncertain.weight.sum()),
        num_rounds=game.num_rounds,
        unit=draws.law.unit,
    )


def _best(kind: Robust, costs: Costs) -> Pair:
    """The offer with the least expected or worst cost."""
    return min(costs, key=lambda offer: _summarize(kind, costs[offer]))


def _judged(offer: Pair, costs: Array) -> Judged:
    return Judged(*offer, float(costs.mean()), float(costs.max()))


def _summarize(kind: Robust, costs: Array) -> float:
    return float(costs.mean() if kind == "expected" else costs.max())


class _Uncertain:
    """The server's cost under every law, at the clients' equilibria."""

    def __init__(self, game: Game, competition: Competition, draws: LawDraws) -> None:
        game = game.replace(clients=compress(game.clients, leaders.FEW))
        self._game, self._competition, self._draws = game, competition, draws
        self.weight = (1 - game.payment_weight) * forgetting(game)
        self.costs = leaders.anticipated(game, competition, self._judge)
        # laws with a lower floor cost less: added, so that no cost is below the payments
        self._floor = float((draws.law.floor - draws.parameters[:, 0]).max() * self.weight.sum())

    def _judge(self, game: Game, payment: float, rate: float, total_volume: Array, aged: float) -> Array:
        """U under every law."""
        paid = np.full(len(self._draws), game.payment_weight * payment * game.num_rounds)
        if not self.weight.any():
            return paid
        held = available(game, rate, total_volume)
        scarcity = scarcity_of(self._draws.law, game.clients.num_clients, held)
        return paid + self._draws.losses(scarcity, staleness(held, rate, aged), self.weight)

    def search(self, kind: Robust, progress: Progress) -> Pair:
        """The best offer by the search of the plain plan."""

        def judge(*equilibrium: Any) -> float:
            return self._floor + _summarize(kind, self._judge(*equilibrium))

        found = leaders.stackelberg(self._game, self._competition, progress, judge)
        return found.payment, found.conservation_rate

    def refined(self, around: Pair, progress: Progress) -> Costs:
        """The costs on a grid of offers, and around those that are best for some law, ever more closely.

        Every offer is judged by all laws, so that they share the work.
        """
        square = self._square(around)
        us, vs = np.linspace(0.0, 1.0, GRID[0]), np.linspace(0.0, 1.0, GRID[1])
        todo = [(u, v) for place, u in enumerate(us) for v in vs[:: 1 if place % 2 == 0 else -1]]
        costs: Costs = {}
        step = np.array([us[1], vs[1]])
        while todo:
            for u, v in todo[: OFFERS - len(costs)]:
                offer = square.point(float(u), float(v))
                if offer not in costs:
                    costs[offer] = self.costs(*offer, SCANNED)
            progress(len(costs) / OFFERS)
            step /= 2
            minima = np.array([square.coordinates(*offer) for offer in _minima(costs)])
            near = (minima[:, None] + step * AROUND).reshape(-1, 2)
            more = len(costs) < OFFERS and step.max() > CLOSEST
            todo = [(u, v) for u, v in near if 0 <= u <= 1 and 0 <= v <= 1] if more else []
        return costs

    def _square(self, around: Pair) -> Square:
        """The offers within three magnitudes of a payment, or all if nothing is paid."""
        square = Square(self._game.payment_range, self._game.conservation_range)
        return square.around(around[0]) if around[0] >= SMALLEST else square

    def polished(self, kind: Robust, offer: Pair) -> Pair:
        """The best offer nearby, by a search without gradients: a maximum has none, and laws have kinks."""
        if offer[0] < SMALLEST:
            return offer
        square = self._square(offer)

        def cost(payment: float, rate: float, tolerance: float) -> float:
            return _summarize(kind, self.costs(payment, rate, tolerance))

        start = Choice(*offer, cost(*offer, FINE), 1)
        found = polished(cost, square, start)
        return found.payment, found.conservation_rate


def _minima(costs: Costs) -> list[Pair]:
    """The best offer of every law."""
    offers = list(costs)
    table = np.array(list(costs.values()))
    return [offers[place] for place in dict.fromkeys(table.argmin(axis=0).tolist())]
