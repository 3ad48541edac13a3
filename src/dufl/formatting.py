"""Numbers as text, formatted the same way in tables, pages and messages."""

import math


def money(value: float) -> str:
    """An amount to the cent; a small amount with three significant digits.

    >>> money(5302.317), money(0.00123), money(0.0)
    ('5,302.32', '0.00123', '0.00')
    """
    return f"{value:,.2f}" if value == 0 or abs(value) >= 0.1 else f"{value:.3g}"


def number(value: float) -> str:
    """A number with a precision that suits its magnitude; a dash if it is not known.

    >>> number(2.39932), number(1564.03), number(3.2e-7), number(float("inf")), number(float("nan"))
    ('2.399', '1,564.0', '3.2e-07', '∞', '–')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or 1e-3 <= abs(value) < 10:
        return f"{value:.3f}"
    if 10 <= abs(value) < 1e7:
        return f"{value:,.1f}"
    return f"{value:.3g}"


def scientific(value: float) -> str:
    """A number without superfluous zeros, in scientific notation below 0.1.

    >>> scientific(0.00015), scientific(0.3), scientific(0.0)
    ('1.5e-4', '0.3', '0')
    """
    if value == 0 or value >= 0.1:
        return f"{value:g}"
    digits, _, power = f"{value:e}".partition("e")
    return f"{float(digits):g}e{int(power)}"


def percent(share: float, digits: int = 2) -> str:
    """A fraction as a percentage.

    >>> percent(0.91389), percent(0.91389, 1)
    ('91.39 %', '91.4 %')
    """
    return f"{100 * share:.{digits}f} %"


def signed(value: float, digits: int = 1) -> str:
    """A difference with its sign, or without a sign if it rounds to zero.

    >>> signed(-5.23), signed(0.01), signed(1234.5), signed(26.98, 2)
    ('−5.2', '0.0', '+1,234.5', '+26.98')
    """
    rounded = round(value, digits)
    return f"{rounded:+,.{digits}f}".replace("-", "−") if rounded else f"{0:.{digits}f}"


def count(how_many: int, singular: str, plural: str = "") -> str:
    """A number with its unit in the singular or plural.

    >>> count(1, "client"), count(1500, "client"), count(2, "pass", "passes")
    ('1 client', '1,500 clients', '2 passes')
    """
    return f"{how_many:,} {singular if how_many == 1 else plural or singular + 's'}"


def duration(seconds: float) -> str:
    """A time span.

    >>> duration(1.26), duration(125)
    ('1.3 s', '2 min 5 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"
