"""The names of the built-in policies, in files, on the command line and in Python."""

import math
import re
from dataclasses import dataclass

from dufl.errors import InputError
from dufl.game.parameters import Offer
from dufl.plugins import Spec, check_spec

POLICIES = (  # names, and examples of names with numbers
    *("dufl", "static", "keep-all", "fresh-only", "window-5", "periodic-5"),
    *("algorithm1", "fixed-10-0.9", "zero", "random", "age-price"),
)
PLAIN = ("dufl", "static", "algorithm1", "zero", "random", "age-price")
_LENGTH = re.compile(r"(window|periodic)-([1-9][0-9]{0,8})")
_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?)"
_FIXED = re.compile(rf"fixed-{_NUMBER}-{_NUMBER}")
_ALGORITHM1 = re.compile(rf"algorithm1-{_NUMBER}")
_RULES = {
    "window": "window-M with an integer M >= 1, such as 'window-5'",
    "periodic": "periodic-M with an integer M >= 1, such as 'periodic-5'",
    "fixed": "fixed-R-θ with a payment R >= 0 and θ in [0, 1], such as 'fixed-10-0.9'",
    "algorithm1": "'algorithm1', or algorithm1-R with a payment R >= 0, such as 'algorithm1-50'",
}


@dataclass(frozen=True)
class Name:
    """A name in parts.

    Attributes:
        kind: "dufl", "static", "algorithm1", "fixed", "zero", "random", "window", "periodic" or "age-price".
        length: M, in rounds; infinite for `keep-all`, which is a window too.
        payment: R, if the name has one.
        conservation_rate: θ, if the name has one.
    """

    kind: str
    length: float = math.nan
    payment: float | None = None
    conservation_rate: float | None = None


def parse_name(name: str) -> Name | None:
    """The parts of the name of a built-in policy; None for any other text.

    >>> parse_name("fixed-10-0.9")
    Name(kind='fixed', length=nan, payment=10.0, conservation_rate=0.9)
    >>> parse_name("window-0") is parse_name("fixed-10-2") is None
    True
    """
    if name in PLAIN:
        return Name(name)
    if name in ("keep-all", "fresh-only"):
        return Name("window", math.inf if name == "keep-all" else 1)
    if match := _LENGTH.fullmatch(name):
        return Name(match[1], int(match[2]))
    fixed, given = _FIXED.fullmatch(name), _ALGORITHM1.fullmatch(name)
    try:
        if fixed:
            offer = Offer(payment=float(fixed[1]), conservation_rate=float(fixed[2]))
            return Name("fixed", payment=offer.payment, conservation_rate=offer.conservation_rate)
        if given:
            offer = Offer(payment=float(given[1]), conservation_rate=0.0)
            return Name("algorithm1", payment=offer.payment)
    except InputError:
        return None
    return None


def check_policy(spec: Spec) -> Spec:
    """Validate the specification of a policy.

    >>> check_policy("window-0")
    Traceback (most recent call last):
    dufl.errors.InputError: policy must be window-M with an integer M >= 1, such as 'window-5', got 'window-0'
    """
    if not isinstance(spec, str) or parse_name(spec) is not None:
        return spec if isinstance(spec, str) else check_spec("policy", spec, POLICIES)
    rule = _RULES.get(spec.partition("-")[0])
    if rule and ":" not in spec:
        raise InputError.of("policy", rule, spec, text=repr(spec[:80]))
    return check_spec("policy", spec, POLICIES)
