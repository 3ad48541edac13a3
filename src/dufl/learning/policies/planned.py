"""Policies that follow a plan of the game.

T. Liu, X. Wang, "Degree of Staleness-Aware Data Updating in Federated Learning", ECAI 2025.

`dufl` follows the server's plan, `algorithm1` the plan of the paper's loop, `fixed-R-θ` the clients'
equilibrium for a given offer, and `static` a plan that pays nothing. `keep-all` and `fresh-only`, where they
buy, are the equilibria at θ = 1 and θ = 0.
"""

from functools import cache

from dufl.data.integer_plan import IntegerPlan, integer_plan
from dufl.errors import InputError
from dufl.game.parameters import Game
from dufl.game.plan import Plan, equilibrium


class Planned:
    """Follows a plan: every client keeps and collects what the plan says, rounded to integers.

    Args:
        plan: a plan with as many rounds and clients as the federation.
        seed: determines the direction in which volumes are rounded; a run uses its own seed.
        first_round: the round of the federation that is the plan's round 0.
    """

    def __init__(self, plan: Plan, seed: int = 0, first_round: int = 0) -> None:
        self.plan = plan
        self.first_round = first_round
        self._seed = seed
        self._integer = cache(self._integer_plan)

    def __repr__(self) -> str:
        return f"Planned({self.plan!r})"

    def payment(self, round: int) -> float:
        """R, the same in every round."""
        return self.plan.payment

    def size(self, client: int) -> int:
        """D_k(0), rounded to an integer."""
        return int(self._integer(client).size[0])

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        """θ·D_k(t) and Δ_k(t), rounded to integers."""
        return self._integer(client).step(round - self.first_round, size)

    def planned_staleness(self, round: int) -> float:
        """S(t)."""
        return float(self.plan.mean_staleness[round - self.first_round])

    def check(self, game: Game) -> None:
        """Raise an error unless the plan has the rounds and clients of a game."""
        for name, planned, wanted in (
            ("num_rounds", self.plan.game.num_rounds, game.num_rounds),
            ("number of clients", self.plan.game.clients.size, game.clients.size),
        ):
            if planned != wanted:
                raise InputError.of("policy", f"a plan whose {name} is {wanted}, as the game's", planned)

    def _integer_plan(self, client: int) -> IntegerPlan:
        volume, rate = self.plan.volume[:, client], self.plan.conservation_rate
        capacity = float(self.plan.game.clients.capacity[client])
        return integer_plan(volume, rate, self._seed, client, self.first_round, capacity)


def no_update(game: Game) -> Plan:
    """The plan that pays nothing and keeps everything, also the first buffers; nobody has a choice."""
    fixed = game.replace(trim_start=False, participation="mandatory")
    return equilibrium(fixed, payment=0.0, conservation_rate=1.0)
