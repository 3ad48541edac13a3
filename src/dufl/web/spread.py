"""How a cost or a volume is spread over clients: a kind and at most two numbers, as the page has them."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dufl.game.population import LogNormal, Uniform

Kind = Literal["the same for all", "uniform", "log-uniform", "log-normal", "as in the file"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LISTED: Kind = "as in the file"
NAMES: dict[Kind, tuple[str, ...]] = {
    "the same for all": ("value",),
    "uniform": ("low", "high"),
    "log-uniform": ("low", "high"),
    "log-normal": ("median", "spread"),
    LISTED: (),
}


@dataclass(frozen=True)
class Spread:
    """A kind of distribution and its numbers, named as in `NAMES`; what is not named means nothing.

    A list with one entry a client has no place on the page: it stays what it is in the file, and the two
    numbers are its least and largest.
    """

    kind: Kind
    first: float
    second: float = 0.0

    @classmethod
    def of(cls, value: Any) -> "Spread":
        """The spread that a column of `[clients]` stands for.

        >>> Spread.of(Uniform(low=1e-4, high=1e-3))
        Spread(kind='uniform', first=0.0001, second=0.001)
        """
        if isinstance(value, Uniform):
            return cls("uniform" if value.scale == "linear" else "log-uniform", value.low, value.high)
        if isinstance(value, LogNormal):
            return cls("log-normal", value.median, value.spread)
        if isinstance(value, list):
            return cls(LISTED, float(min(value)), float(max(value)))
        return cls("the same for all", float(value))

    def to_toml(self) -> str:
        """The value as it stands in the file.

        >>> Spread("log-uniform", 1e-4, 1e-3).to_toml()
        '{low=0.0001, high=0.001, scale="log"}'
        """
        numbers = [repr(self.first), repr(self.second)]
        named = ", ".join(f"{name}={n}" for name, n in zip(NAMES[self.kind], numbers, strict=False))
        if self.kind == "the same for all":
            return numbers[0]
        return f'{{{named}, scale="log"}}' if self.kind == "log-uniform" else f"{{{named}}}"

    def turned(self, kind: Kind) -> "Spread":
        """About the same values as another kind of distribution."""
        low, high = self._range()
        middle = math.sqrt(low * high) if low > 0 else (low + high) / 2
        if kind == "the same for all":
            return Spread(kind, _round((low + high) / 2))
        if kind == "log-normal":
            return Spread(kind, _round(middle or 1.0), _round(math.log(high / low) / 4) if low > 0 else 0.5)
        if kind == "log-uniform" and low <= 0:
            low = high / 10 or 1.0
        return Spread(kind, _round(low), _round(max(low, high)))

    def _range(self) -> tuple[float, float]:
        if self.kind == "the same for all":
            return self.first / 2, self.first * 1.5
        if self.kind == "log-normal":
            return self.first * math.exp(-2 * self.second), self.first * math.exp(2 * self.second)
        return self.first, self.second


def _round(value: float) -> float:
    return float(f"{value:.3g}")
