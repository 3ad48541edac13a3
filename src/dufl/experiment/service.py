"""The section `[service]` of a file: how a run on Flower goes on, pays and checks what it pays for."""

import re
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Annotated, Literal

from pydantic import AfterValidator

from dufl.errors import InputError, shown
from dufl.inputs import Count, Inputs, NonNegative, Share

PaymentRule = Literal["volume", "audited", "contribution"]
_UNIT = re.compile(r"(?P<size>1|10+|0\.0*1)( (?P<currency>[^\W\d_]{1,10}))?")


@dataclass(frozen=True)
class Unit:
    """The smallest amount that is paid, and its currency.

    Attributes:
        size: a power of ten.
        currency: such as "EUR"; empty if amounts have none.

    >>> euro = Unit.parse("0.01 EUR")
    >>> euro.count(63.185), euro.text(6318), euro.amount(6318)
    (6318, '63.18 EUR', '63.18')
    >>> Unit.parse("10").text(123456)
    '1,234,560'
    """

    size: Decimal = Decimal("0.01")
    currency: str = ""

    @classmethod
    def parse(cls, text: str) -> "Unit":
        """From text such as "0.01 EUR" or "1"."""
        found = _UNIT.fullmatch(text) if len(text) <= 40 else None
        if not found:
            rule = "a power of ten, and optionally a currency, such as '0.01 EUR'"
            raise InputError.of("unit", rule, text, text=shown(text))
        return cls(Decimal(found["size"]), found["currency"] or "")

    def __str__(self) -> str:
        return f"{self.size} {self.currency}".strip()

    def count(self, payment: float) -> int:
        """An amount as a number of units, rounded half to even."""
        with localcontext(prec=200):
            return int((Decimal(repr(float(payment))) / self.size).quantize(Decimal(1), ROUND_HALF_EVEN))

    def value(self, units: int) -> Decimal:
        """The amount of a number of units."""
        with localcontext(prec=200):
            return units * self.size

    def amount(self, units: int) -> str:
        """A number of units as a decimal number, without currency."""
        return f"{self.value(units):f}"

    def text(self, units: int) -> str:
        """A number of units as text for people."""
        return f"{self.value(units):,f} {self.currency}".strip()


def _unit(text: str) -> str:
    return str(Unit.parse(text))


class Service(Inputs):
    """How a run on Flower goes on, pays and checks what it pays for; the section `[service]` of a file.

    Attributes:
        max_rounds: the number of rounds after which a service with `game.horizon = "endless"` ends; None for
            a service that ends when it is stopped or its budget is spent.
        total_budget: the amount that is paid at most, over all rounds and restarts; None for any amount.
        unit: the smallest amount that is paid, and optionally its currency: "0.01 EUR".
        payment_rule: what a client is paid by: "volume" (the paper), "audited" (by volume, but held back
            while its updates do not improve the model) or "contribution" (by how much they improve it).
        audit_samples: the number of the server's samples on which updates are audited.
        audit_share: the share of a round's time that the audit may take.
        commitment_grid: clients round the volumes that they commit to to multiples of this number.
    """

    max_rounds: Count | None = None
    total_budget: NonNegative | None = None
    unit: Annotated[str, AfterValidator(_unit)] = "0.01"
    payment_rule: PaymentRule = "volume"
    audit_samples: Count = 1000
    audit_share: Share = 0.1
    commitment_grid: Count = 1
