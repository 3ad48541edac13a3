"""The tables of docs/flower.md that no command of DUFL prints.

python docs/flower_tables.py payments   what a client is paid on average if only some clients are selected
python docs/flower_tables.py volumes    what volumes reveal, and what a grid costs; takes some minutes
"""

import sys
from itertools import combinations

import numpy as np

SELECTED = (1, 2, 3, 5, 8, 10)  # of ten clients
RELATIVE = (0.5, 0.8, 1.0, 1.25, 2.0)  # volumes of a client, relative to the mean of all


def payments() -> None:
    """The mean payment relative to the announced one, by counting all selections of m of 10 clients.

    One client has d times the mean volume of all ten; the other nine have equal volumes.
    """
    print("mean payment of a client / announced payment, 10 clients")
    print("volume / mean volume" + "".join(f"{d:>9g}" for d in RELATIVE))
    for selected in SELECTED:
        cells = "".join(f"{100 * (_paid(d, selected) - 1):>+7.1f} %" for d in RELATIVE)
        print(f"{selected:>2} of 10 selected     {cells}")


def _paid(relative: float, selected: int, count: int = 10) -> float:
    volumes = np.array([relative] + [(count - relative) / (count - 1)] * (count - 1))
    chosen = [list(each) for each in combinations(range(count), selected)]
    shares = [volumes[0] / volumes[each].sum() if 0 in each else 0.0 for each in chosen]
    return float(np.mean(shares)) / (relative / count)


if __name__ == "__main__":
    {"payments": payments}[sys.argv[1]]()
