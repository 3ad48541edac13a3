"""What came of the runs, in a sentence, a few figures and a table."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from dufl.data.arrival import Arrival
from dufl.formatting import count, money, number, percent
from dufl.report.page import Cell, Section, paragraph, table
from dufl.report.planning import Planning
from dufl.report.run_charts import accuracy_chart, cost_so_far_chart, loss_chart
from dufl.report.stored import Group

PAIRS = 3  # told one by one in the headline at most


def title(groups: Sequence[Group]) -> str:
    """On what was trained, and how."""
    told = [
        (Path(g.config.data.dataset).name, g.config.training.model, g.config.training.algorithm)
        for g in groups
    ]
    parts = [" and ".join(dict.fromkeys(values)) for values in zip(*told, strict=True)]
    return f"Training report: {', '.join(parts)}"


def headline(groups: Sequence[Group], found: Sequence[Planning]) -> str:
    """The main result in words."""
    pairs = _pairs(groups)
    if not pairs:
        said = [f"{one.label} the model ends at {_final(one)}{_so_far(one)}" for one in groups[:PAIRS]]
        return f"{'; '.join(_capital(text) for text in said)}.{_offer(found)}"
    if len(pairs) > PAIRS:
        updated, alone = (sorted(pair[i].summary["final_accuracy"] for pair in pairs) for i in (0, 1))
        return (
            f"With data update models end at {_range(updated)}, without at {_range(alone)}, "
            f"in {len(pairs)} comparisons."
        )
    said = []
    for fresh, idle in pairs:
        what = "" if len(pairs) == 1 else f" ({fresh.label.partition(', ')[2]})"
        far = _so_far(fresh) or _so_far(idle)
        ends = f"the model ends at {_final(fresh)}, without at {_final(idle)}"
        said.append(f"with data update{what} {ends}{far}")
    return f"{_capital('; '.join(said))}.{_offer(found)}"


def facts(groups: Sequence[Group], found: Sequence[Planning]) -> str:
    """A few figures that matter most, of the first plan."""
    pairs = _pairs(groups)
    shown = list(pairs[0]) if pairs else [groups[0]]
    figures = [(percent(one.summary["final_accuracy"], 1), f"accuracy {one.label}") for one in shown]
    first = shown[0]
    planning = next(one for one in found if first in one.groups)
    plan = planning.followed_by(first)
    if plan is not None:
        figures.append((money(plan.payment), "paid to all clients a round (R)"))
        figures.append((percent(plan.conservation_rate, 1), "of the data kept from round to round (θ)"))
    cost, idle = first.summary["server_cost"], planning.plan.no_update_cost
    if first.finished and first.policy != "static" and idle > 0:
        word = "less" if cost <= idle else "more"
        figures.append((percent(abs(1 - cost / idle), 1), f"{word} cost to the server than without update"))
    figures.append((f"{first.summary['mean_age']:.2f}", f"rounds, mean age of the data {first.label}"))
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for value, name in figures)
    return f'<dl class="facts">{items}</dl>\n'


def results_section(groups: Sequence[Group], arrival: Arrival | None) -> Section:
    """A table of the groups, and how well they learn over the rounds."""
    several = any(len(one.runs) > 1 for one in groups)
    shades = "Lines are means over the seeds; shades reach from the least to the most of them."
    hint = "Drag across a chart to look closer, double-click to go back; the legend hides and shows lines."
    charts = [accuracy_chart(groups, arrival), loss_chart(groups, arrival), cost_so_far_chart(groups)]
    words = [paragraph(shades, "note")] * several + [paragraph(hint, "note hint")]
    return Section("Results", "Results", [summary_table(groups), *words, charts])


def summary_table(groups: Sequence[Group]) -> str:
    """One row a group."""
    several = any(len(one.runs) > 1 for one in groups)
    heads = ["runs", *["seeds"] * several, "accuracy, %", *["± std"] * several]
    heads += ["best, %", "loss", "samples held", "mean age", "payment", "cost U"]
    caption = (
        "Payment and server cost over all rounds; samples held and their age in rounds, mean over rounds"
    )
    if several:
        caption += ". Each row is the mean over its seeds, ± the standard deviation of the accuracy"
    return table(caption, heads, [_row(one, several) for one in groups])


def _row(one: Group, several: bool) -> list[Cell]:
    found = one.summary
    final, best = (100 * found[name] for name in ("final_accuracy", "best_accuracy"))
    seeds: list[Cell] = [(f"{len(one.runs)}", len(one.runs))]
    std = found["accuracy_std"]
    around: list[Cell] = ["–" if std is None else (f"{100 * std:.2f}", 100 * std)]
    return [
        one.name,
        *(seeds if several else []),
        (f"{final:.2f}", final),
        *(around if several else []),
        (f"{best:.2f}", best),
        (f"{found['final_loss']:.4f}", found["final_loss"]),
        (f"{found['mean_volume']:,.0f}", found["mean_volume"]),
        (f"{found['mean_age']:.2f}", found["mean_age"]),
        (money(found["total_payment"]), found["total_payment"]),
        (number(found["server_cost"]), found["server_cost"]),
    ]


def _pairs(groups: Sequence[Group]) -> list[tuple[Group, Group]]:
    """The groups that differ only by whether data are updated."""
    idle = {one.rest: one for one in groups if one.policy == "static"}
    return [(one, idle[one.rest]) for one in groups if one.policy == "dufl" and one.rest in idle]


def _final(one: Group) -> str:
    return percent(one.summary["final_accuracy"], 1)


def _so_far(one: Group) -> str:
    if one.finished:
        return ""
    return f" (stopped after {one.rounds:,} of {count(one.config.game.num_rounds, 'round')})"


def _range(shares: Sequence[float]) -> str:
    return f"{100 * shares[0]:.1f} to {percent(shares[-1], 1)}"


def _offer(found: Sequence[Planning]) -> str:
    if len(found) > 1 or not found[0].followers:
        return ""
    plan = found[0].plan
    return (
        f" For that the server pays {money(plan.payment)} a round, and clients keep "
        f"{percent(plan.conservation_rate, 1)} of their data from one round to the next."
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
