"""The certificate of a joint response to an offer: that of its profile, and that of who takes part.

The profile is what the solvers say; `certificate` judges it. If participation is voluntary, two more
statements are proved.

    nobody inside gains by leaving      The utility of a client, as the certificate computes it, is at least
                                        its reservation.
    nobody outside gains by entering    At the total of those inside, a client's utility is an upper bound of
                                        what it has after entering, because the total would not fall. If this
                                        bound exceeds its reservation, the equilibrium with this client is
                                        certified like any other, and its utility there is compared.

Clients that stay away have zeros in the certificate.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.game.certificate import CERTIFIED, Certificate, Findings, conclude, examine
from dufl.game.client import trajectories
from dufl.game.dynamics import Array
from dufl.game.mean_field import find_equilibrium, price_of
from dufl.game.parameters import Competition, Game
from dufl.game.population import Clients
from dufl.game.search import Progress
from dufl.game.threads import in_order
from dufl.game.voluntary import Mask

ASKED = 1000  # clients outside whose entering is certified exactly, at most


@dataclass(frozen=True, eq=False)
class Answered:
    """An offer, and the total volume to which the clients respond."""

    game: Game
    payment: float
    conservation_rate: float
    competition: Competition
    announced_volume: Array

    def profile(self, clients: Clients, competition: Competition | None = None) -> tuple[Array, Array]:
        """Volume and collection of some clients."""
        price, slope = price_of(self.payment, self.announced_volume, competition or self.competition)
        return trajectories(clients, price, slope, self.conservation_rate, self.game.trims)

    def examined(
        self, clients: Clients, total: Array, competition: Competition, progress: Progress
    ) -> list[Findings]:
        """What the certificate finds about some clients, given the total of those who take part."""
        offer, trim = (self.payment, self.conservation_rate), self.game.trims

        def judge(part: slice) -> Findings:
            chosen = clients.take(part)
            return examine(chosen, *offer, total, *self.profile(chosen, competition), competition, trim)

        return in_order(judge, clients.size, progress)

    def total(self, clients: Clients) -> Array:
        """Σ_k D_k(t) of some clients."""

        def add_up(part: slice) -> Array:
            chosen = clients.take(part)
            return np.asarray((self.profile(chosen)[0] * chosen.multiplicity).sum(axis=1))

        return np.asarray(np.sum(in_order(add_up, clients.size), axis=0))


def certify_response(
    answered: Answered, takes_part: Mask | None, progress: Progress = lambda _: None
) -> Certificate:
    """Certify a joint response client by client, independently of the solvers."""
    clients = answered.game.clients
    if takes_part is None:
        total = answered.total(clients)
        findings = answered.examined(clients, total, answered.competition, progress)
        return conclude(findings, total, answered.competition)
    inside, outside = np.flatnonzero(takes_part), np.flatnonzero(~takes_part)
    certificate = _empty(answered)
    if inside.size:
        some = clients.take(inside)
        total = answered.total(some)
        findings = answered.examined(some, total, answered.competition, progress)
        certificate = _scattered(conclude(findings, total, answered.competition), inside, clients.size)
    leaving = _relative(
        clients.reservation[inside] - certificate.utility[inside], certificate.turnover[inside]
    )
    entering = _entering(answered, takes_part, outside, certificate)
    return replace(certificate, participation_gain=max(leaving, entering))


def _entering(
    answered: Answered, takes_part: Mask, outside: npt.NDArray[np.intp], inner: Certificate
) -> float:
    """An upper bound of what a client outside gains by entering, relative to its turnover."""
    if not outside.size:
        return 0.0
    clients = answered.game.clients
    if takes_part.any():
        some = clients.take(outside)
        total = answered.total(clients.take(np.flatnonzero(takes_part)))
        judged = conclude(answered.examined(some, total, "mean-field", lambda _: None), total, "mean-field")
        gains = _gains(judged.utility + judged.fixed_gain - some.reservation, judged.turnover)
    else:
        gains = np.full(outside.size, np.inf if answered.payment > 0 else 0.0)
    open_ = outside[gains > CERTIFIED]
    settled = float(gains[gains <= CERTIFIED].max(initial=0.0))
    if open_.size > ASKED:
        return float(gains.max())
    return max([settled, *(_entering_alone(answered, takes_part, int(k)) for k in open_)])


def _entering_alone(answered: Answered, takes_part: Mask, k: int) -> float:
    """What a client gains by entering, at the certified equilibrium with it; relative to its turnover."""
    more = takes_part.copy()
    more[k] = True
    if more.sum() < 2 and answered.competition == "nash":
        return 0.0  # a client alone is paid everything whatever it holds: there is no such game
    clients = answered.game.clients
    if not clients.initial_volume[more].any():
        return 0.0
    joined, game = clients.take(np.flatnonzero(more)), answered.game
    offer = answered.payment, answered.conservation_rate, answered.competition
    found = find_equilibrium(joined, game.num_rounds, *offer, trim_start=game.trims)
    together = replace(answered, game=game.replace(clients=joined), announced_volume=found.announced_volume)
    certificate = certify_response(together, None)
    if not certificate.holds():
        return float("inf")
    at = int(np.count_nonzero(more[:k]))
    exact = answered.competition == "nash"
    best = certificate.utility[at] + (certificate.influence_gain if exact else certificate.fixed_gain)[at]
    return _relative(np.array([best - clients.reservation[k]]), certificate.turnover[[at]])


def _relative(gain: Array, turnover: Array) -> float:
    return float(_gains(gain, turnover).max(initial=0.0))


def _gains(gain: Array, turnover: Array) -> Array:
    """Gains relative to the turnover; a client without any turnover gains all or nothing."""
    positive = np.maximum(gain, 0.0)
    everything = np.where(positive > 0, np.inf, 0.0)
    return np.divide(positive, turnover, out=everything, where=turnover > 0)


def _empty(answered: Answered) -> Certificate:
    """The certificate if nobody takes part."""
    none = np.zeros(answered.game.clients.size)
    return Certificate(
        competition=answered.competition,
        law_residual=none,
        kkt_residual=none,
        fixed_gain=none,
        influence_gain=none,
        turnover=none,
        utility=none,
        equilibrium_residual=0.0,
        shadow_price=none,
        full_rounds=none.astype(np.int64),
    )


def _scattered(certificate: Certificate, inside: npt.NDArray[np.intp], size: int) -> Certificate:
    """A certificate of some clients as one of all, with zeros for the others."""

    def spread(values: npt.NDArray[Any]) -> Any:
        every = np.zeros(size, values.dtype)
        every[inside] = values
        return every

    names = [name for name, value in vars(certificate).items() if isinstance(value, np.ndarray)]
    return replace(certificate, **{name: spread(getattr(certificate, name)) for name in names})
