"""Late binding for the methods of results that draw or write reports.

`Plan.plot()` and `Run.report()` belong to lower packages, but call functions of higher packages, which import
the results. These methods look up their function by name when they are called. Lower packages therefore do
not depend on higher packages at import time.
"""

from importlib import import_module
from typing import Any


def late(path: str) -> Any:
    """Import and return the function `package.module:name`.

    >>> late("math:sqrt")(9.0)
    3.0
    """
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
