"""The validated inputs of the game: the clients, the weights of the server's cost, and the offer."""

from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import BeforeValidator, Field, model_validator

from dufl.errors import InputError
from dufl.game.loss import ConvergenceBound, LossLaw, checked_law
from dufl.game.population import Clients
from dufl.inputs import Inputs, Interval, NonNegative, Positive, Share, Whole, must_be

Competition = Literal["mean-field", "nash"]
Horizon = Literal["finite", "endless"]
Participation = Literal["mandatory", "voluntary"]
Rounds = Annotated[
    Whole, must_be(">= 2", lambda v: v >= 2), must_be("100,000 at most", lambda v: v <= 100_000)
]
Decay = Annotated[Positive, must_be("in (0, 1]", lambda v: v <= 1)]
PaymentRange = Annotated[Interval, must_be("[low, high] with 0 <= low <= high", lambda v: 0 <= v[0] <= v[1])]
ConservationRange = Annotated[
    Interval, must_be("[low, high] with 0 <= low <= high <= 1", lambda v: 0 <= v[0] <= v[1] <= 1)
]
_WEIGHTS = ("decay", "volume_weight", "staleness_weight")
_CONVEXITY = ("strong_convexity", "smoothness", "learning_rate")


class Offer(Inputs):
    """The server's offer to the clients.

    Attributes:
        payment: R, per round.
        conservation_rate: θ, the share of its samples that a client keeps from one round to the next.
    """

    payment: NonNegative
    conservation_rate: Share


class Game(Inputs):
    """The clients and the parameters of the server's cost; by default the paper's.

    The three weights κ are given directly or, as in Theorem 1, by `strong_convexity`,
    `smoothness` and `learning_rate` (see `convergence_weights`).

    Attributes:
        clients: the clients of the federation.
        num_rounds: T.
        horizon: "finite", or "endless" for a service without a last round, which `solve_endless` plans. Then
            `num_rounds`, initial volumes and `trim_start` have no meaning, and `decay` must be 1.
        time_sensitivity: σ, how much staleness hurts the task.
        sampling_noise: ψ, how much a small volume hurts.
        payment_weight: γ, the server's weight of money against accuracy.
        decay: κ1, how fast a round's loss is forgotten.
        volume_weight: κ2.
        staleness_weight: κ3.
        payment_range: the payments R per round that the server may offer.
        conservation_range: the conservation rates θ that the server may require.
        trim_start: whether a client may begin with less than its initial volume. Then D_k(0) is its choice
            too, and nobody has to carry a first buffer that is too large for the offer. None means no,
            except for plans with a budget or an accuracy.
        participation: "mandatory", as in the paper, or "voluntary": a client whose utility would be below its
            `reservation` stays away. It is not paid, holds nothing for the server, and does not count in N.
        loss: the loss law ℓ(N/D, S): a `PowerLaw`, or a function of (N/D, S). None is the paper's bound, with
            the weights above.

    >>> Game(num_rounds=50).time_sensitivity
    0.75
    >>> Game(time_sensitivity=-1)
    Traceback (most recent call last):
    ...
    dufl.errors.InputError: time_sensitivity must be >= 0, got -1
    """

    clients: Clients = Field(default_factory=Clients.draw)
    num_rounds: Rounds = 100
    horizon: Horizon = "finite"
    time_sensitivity: NonNegative = 0.75
    sampling_noise: NonNegative = 1.0
    payment_weight: Share = 1e-4
    decay: Decay = 1.0
    volume_weight: NonNegative = 1.0
    staleness_weight: NonNegative = 1e-2
    payment_range: PaymentRange = (0.0, 500.0)
    conservation_range: ConservationRange = (0.0, 1.0)
    trim_start: bool | None = None
    participation: Participation = "mandatory"
    loss: Annotated[Any, BeforeValidator(checked_law)] = None

    @property
    def trims(self) -> bool:
        """Whether a client may begin with less than its initial volume."""
        return bool(self.trim_start)

    @property
    def law(self) -> LossLaw:
        """The loss law; the paper's bound by default."""
        if self.loss is not None:
            return self.loss  # type: ignore[no-any-return]
        return ConvergenceBound.of(
            self.volume_weight * self.sampling_noise**2, self.staleness_weight * self.time_sensitivity**2
        )

    @model_validator(mode="after")
    def _no_last_round(self) -> Self:
        if self.horizon == "endless" and self.decay != 1:
            rule = "1 with horizon = 'endless', where no round is the last and all count the same"
            raise InputError.of("decay", rule, self.decay)
        return self

    @model_validator(mode="before")
    @classmethod
    def _weights_from_convexity(cls, values: dict[str, Any]) -> dict[str, Any]:
        given = {name: values[name] for name in _CONVEXITY if name in values}
        if not given:
            return values
        if len(given) < len(_CONVEXITY):
            raise InputError.of(", ".join(_CONVEXITY), "given together", f"only {', '.join(given)}")
        both = [name for name in _WEIGHTS if name in values]
        if both:
            raise InputError.of(
                both[0], "left out when strong_convexity and the like are given", values[both[0]]
            )
        rest = {name: v for name, v in values.items() if name not in given}
        return {**rest, **convergence_weights(**given)}


def require_rounds(game: Game, rule: str = "'finite' for a training, which needs a number of rounds") -> None:
    """Raise `InputError` for an endless game, where a number of rounds is needed."""
    if game.horizon == "endless":
        raise InputError.of("horizon", rule, "endless", text="'endless'")


class ConvergenceWeights(TypedDict):
    """κ1, κ2 and κ3, ready for `Game(**weights)`."""

    decay: float
    volume_weight: float
    staleness_weight: float


class _Convexity(Inputs):
    strong_convexity: Positive
    smoothness: Positive
    learning_rate: Positive


def convergence_weights(
    strong_convexity: float, smoothness: float, learning_rate: float
) -> "ConvergenceWeights":
    """Theorem 1's weights κ1 = 1 + 4μβη² − 2μη, κ2 = 2βη², κ3 = βη².

    Args:
        strong_convexity: μ of every client's loss.
        smoothness: β, the Lipschitz constant of its gradient; at least μ.
        learning_rate: η, at most 1/(2β).

    Returns:
        `decay`, `volume_weight` and `staleness_weight`, ready for `Game(**...)`.
    """
    given = _Convexity(strong_convexity=strong_convexity, smoothness=smoothness, learning_rate=learning_rate)
    mu, beta, eta = given.strong_convexity, given.smoothness, given.learning_rate
    if mu > beta:
        raise InputError.of("strong_convexity", f"<= smoothness = {beta:g}", f"{mu:g}")
    if eta > 1 / (2 * beta):
        raise InputError.of("learning_rate", f"<= 1/(2 * smoothness) = {1 / (2 * beta):g}", f"{eta:g}")
    return {
        "decay": 1 + 4 * mu * beta * eta**2 - 2 * mu * eta,
        "volume_weight": 2 * beta * eta**2,
        "staleness_weight": beta * eta**2,
    }
