"""Who is paid what, and what is left of it."""

from collections.abc import Sequence
from dataclasses import replace

from dufl.formatting import money
from dufl.report.client_charts import Earnings, earnings, earnings_charts
from dufl.report.page import Block, Cell, Section, paragraph, table
from dufl.report.planning import SHOWN, Planning
from dufl.report.stored import Group

ROWS = 100  # of the table of clients at most


def clients_section(found: Sequence[Planning]) -> list[Section]:
    """Payment and utility of every client, a part a plan; nothing where no plan is followed."""
    blocks: list[Block] = []
    for place, planning in enumerate(found[:SHOWN], 1):
        followers = planning.followers or [one for one in planning.groups if one.policy == "static"]
        plan = planning.followed_by(followers[0]) if followers else None
        if plan is None:
            continue
        runs = [run for one in followers for run in one.runs]
        earned = earnings(plan, runs)
        name, prefix = (f"Plan {place}: ", f"plan_{place}_") if len(found) > 1 else ("", "")
        blocks += [
            *([f"<h3>Plan {place}</h3>\n"] if name else []),
            paragraph(_words(earned, followers, len(runs))),
            [replace(chart, name=prefix + chart.name) for chart in earnings_charts(earned)],
            _table(earned, name),
        ]
    return [Section("Clients", "Clients: payment and utility", blocks)] if blocks else []


def _words(earned: Earnings, followers: Sequence[Group], runs: int) -> str:
    rounds = min(one.rounds for one in followers)
    lost = int((earned.measured_utility < 0).sum())
    who = "No client" if lost == 0 else f"{lost:,} of {earned.client.size:,} clients"
    mean = "" if runs == 1 else f" Measured is the mean of {runs} runs."
    return (
        f"What each client is paid over {rounds:,} rounds by the volume it holds, and its utility: what is "
        f"left of that after the costs of collecting and training. {who} lost by taking part.{mean}"
    )


def _table(earned: Earnings, prefix: str) -> str:
    """The clients; of many, some evenly chosen from the one who was to earn most on."""
    total = earned.client.size
    few = min(total, ROWS)
    places = [round(i * (total - 1) / max(few - 1, 1)) for i in range(few)]
    who, *columns = ([float(value) for value in column] for column in earned.columns.values())
    rows: list[list[Cell]] = [
        [(f"{who[i]:.0f}", who[i]), *((money(column[i]), column[i]) for column in columns)] for i in places
    ]
    part = "" if few == earned.of else f"; {few:,} of {earned.of:,} clients, evenly chosen"
    heads = ("client", "paid, planned", "paid, measured", "utility, planned", "utility, measured")
    return table(f"{prefix}What each client earns over all rounds{part}", heads, rows)
