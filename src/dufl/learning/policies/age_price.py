"""`age-price`: the payment of a round rises with the mean age of the data.

After X. Wang and L. Duan, "Dynamic pricing for controlling age of information", ISIT 2019; extended in
"Dynamic pricing and mean field analysis for controlling age of information", arXiv:2004.10050.

Theirs is the idea: a provider offers returns that depend on the age of its content, so that users sample at
different rates over time. They find the price by approximate dynamic programming, in closed form, for users
who arrive at random and whose sampling costs are private.

The adaptation: a buffer has a mean staleness S(t) instead of one age. The payment of a round is proportional
to it, R(t) ∝ S(t), the simplest function that rises, and is scaled so that Σ_t R(t) is the money that may be
spent. Clients know the path of prices R(t)/φ(t) and respond to all of it, as in the rest of the game; see
`dufl.game.price_path`. The conservation rate is that of the server's plan.
"""

from dufl.errors import InputError
from dufl.game.parameters import Competition, Game
from dufl.game.price_path import age_price
from dufl.learning.policies.policy import Trajectories


class AgePrice(Trajectories):
    """Pays more when data is old; every client keeps and collects what is best for it.

    Args:
        game: its clients and number of rounds.
        mean_payment: the mean of the payments over the rounds.
        conservation_rate: θ.
        competition: of the clients.
        seed: determines the direction in which volumes are rounded.

    Attributes:
        path: the payments, the volumes and the residual of the equilibrium.
    """

    def __init__(
        self,
        game: Game,
        mean_payment: float,
        conservation_rate: float,
        competition: Competition = "mean-field",
        seed: int = 0,
    ) -> None:
        if game.participation == "voluntary":
            raise InputError.of("participation", "'mandatory' with policy age-price", game.participation)
        self.path = path = age_price(game, mean_payment, conservation_rate, competition)
        super().__init__(game, path.payment, path.volume, conservation_rate, path.mean_staleness, seed)

    def __repr__(self) -> str:
        mean, rate = self.path.payment.mean(), self.path.conservation_rate
        return f"AgePrice(mean_payment={mean:g}, conservation_rate={rate:g})"
