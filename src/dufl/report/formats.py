"""Numbers for people, the same wherever they are shown."""

import math


def money(value: float) -> str:
    """To the cent.

    >>> money(5302.317)
    '5,302.32'
    """
    return f"{value:,.2f}"


def number(value: float) -> str:
    """With as many digits as tell something.

    >>> number(2.39932), number(1564.03), number(3.2e-7), number(float("inf"))
    ('2.399', '1,564.0', '3.2e-07', '∞')
    """
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or 1e-3 <= abs(value) < 10:
        return f"{value:.3f}"
    if 10 <= abs(value) < 1e7:
        return f"{value:,.1f}"
    return f"{value:.3g}"


def percent(share: float, digits: int = 2) -> str:
    """A share of one in percent.

    >>> percent(0.91389), percent(0.91389, 1)
    ('91.39 %', '91.4 %')
    """
    return f"{100 * share:.{digits}f} %"


def count(how_many: int, one: str, many: str = "") -> str:
    """How many of something.

    >>> count(1, "client"), count(1500, "client"), count(2, "pass", "passes")
    ('1 client', '1,500 clients', '2 passes')
    """
    return f"{how_many:,} {one if how_many == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """A time.

    >>> duration(1.26), duration(125)
    ('1.3 s', '2 min 5 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"
