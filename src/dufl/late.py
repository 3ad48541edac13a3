"""Late binding: the methods by which results show themselves.

`Plan.plot()` and `Run.report()` are methods of results, which live in lower rooms; what they call lives in
rooms above, which import the results. Such a method looks its function up by name when it is called. It needs
nothing of the room above before, so the import rules hold: a lower room works without the rooms above it.
"""

from importlib import import_module
from typing import Any


def late(path: str) -> Any:
    """The function `package.module:name`.

    >>> late("math:sqrt")(9.0)
    3.0
    """
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
