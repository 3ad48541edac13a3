"""Latency of the explorer: from moving a slider to the plan, and to the complete page.

The page runs as for a visitor, but without a browser. The script prints its measurements beside the targets.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.table import Table
from streamlit.testing.v1 import AppTest

from dufl.web import plans, streamlit_app

TARGETS = {15: 0.3, 10_000: 2.0}  # seconds, by the number of clients
SENSITIVITIES = [0.4 + 0.05 * i for i in range(20)]


def visit(count: int) -> AppTest:
    """A page with `count` clients."""
    tab = AppTest.from_file(streamlit_app.__file__, default_timeout=120).run()
    return tab.number_input(key="count").set_value(count).run()


def measured(tab: AppTest) -> list[tuple[float, float]]:
    """Seconds to the plan and to the complete page, for every σ."""
    marks: list[float] = []
    seconds = []
    original = plans.baseline_plan

    def noted(*arguments: Any) -> Any:
        marks.append(time.perf_counter())  # the plan is shown, Algorithm 1 comes next
        return original(*arguments)

    with patch.object(plans, "baseline_plan", noted):
        for sigma in SENSITIVITIES:
            marks.clear()
            begin = time.perf_counter()
            tab.slider(key="time_sensitivity").set_value(round(sigma, 2)).run()
            seconds.append((marks[0] - begin, time.perf_counter() - begin))
    return seconds


def main() -> None:
    sys.argv = ["page"]  # no configuration file
    table = Table("clients N", "plan, median s", "worst s", "target s", "complete page, median s", "worst s")
    table.title = f"Latency of the explorer over {len(SENSITIVITIES)} moves of σ"
    for count, target in TARGETS.items():
        plan, whole = zip(*measured(visit(count)), strict=True)
        numbers = (statistics.median(plan), max(plan), target, statistics.median(whole), max(whole))
        form: Callable[[float], str] = "{:.2f}".format
        table.add_row(f"{count:,}", *map(form, numbers))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
