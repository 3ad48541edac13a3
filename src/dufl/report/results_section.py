"""The results of the report: headline, key figures, summary, training curves, data, and updates left out."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dufl.data.arrival import Arrival
from dufl.experiment.findings import statistics_of
from dufl.experiment.statistics import LEAST
from dufl.experiment.stored import Group, Stored
from dufl.experiment.train import short_name
from dufl.formatting import count, money, number, percent
from dufl.report.measure import RMSE
from dufl.report.page import Block, Cell, Charts, Facts, Paragraph, Section, Table
from dufl.report.planning import Planning
from dufl.report.predictions import predicted_facts
from dufl.report.recorded_results import (
    after,
    free_text,
    line_of,
    missing_texts,
    parts,
    recorded_facts,
    recorded_headline,
    recorded_table,
)
from dufl.report.run_charts import classes_chart, cost_so_far_chart, data_charts, score_charts, used_chart
from dufl.report.setup_section import name_of
from dufl.report.statistics_table import HEADS, explanations, score_head
from dufl.report.statistics_table import cells as statistics_cells

ROWS = 100  # of the table of updates left out at most
SILENT = "no answer"
SCALED = "scaled down"
PLANNED = "Wide lines are planned values; thin lines are measured in the clients' buffers."
OWN = "The runs use a custom policy of data update: there is no plan to compare the measurements with."


def title(groups: Sequence[Group]) -> str:
    """The dataset, the model and the algorithm."""
    names = [
        tuple(map(short_name, (g.config.data.dataset, g.config.training.model, g.config.training.algorithm)))
        for g in groups
    ]
    parts = [" and ".join(dict.fromkeys(values)) for values in zip(*names, strict=True)]
    return f"Training report: {', '.join(parts)}"


def headline(groups: Sequence[Group], plannings: Sequence[Planning]) -> str:
    """The result of the best method, and of the same method without data update."""
    if (part := parts(groups)[0]).measure is not None:
        return recorded_headline(part, plannings)
    groups = part.groups
    best, *without = _best(groups)
    policy, _, rest = best.label.partition(", ")
    if len(_pairs(groups) or groups) > 1:
        text = f"Best result: {policy}{f' ({rest})' if rest else ''}, test accuracy is "
    else:
        text = f"{policy[:1].upper()}{policy[1:]}, test accuracy is "
    text += f"{percent(best.summary['final_accuracy'], 1)}{after(best)}"
    for other in without:
        text += f"; without, {percent(other.summary['final_accuracy'], 1)}"
        text += after(other) if other.rounds != best.rounds else ""
    planning = next(one for one in plannings if best in one.groups)
    if best.policy != "dufl":
        return f"{text}."
    plan = planning.plan
    return (
        f"{text}. The server pays {money(plan.payment)} per round, and clients keep "
        f"{percent(plan.conservation_rate, 1)} of their data from one round to the next."
    )


def facts(groups: Sequence[Group], plannings: Sequence[Planning]) -> Facts:
    """Key figures of the best method."""
    if (part := parts(groups)[0]).measure is not None:
        return recorded_facts(part, plannings)
    groups = part.groups
    best, *without = _best(groups)
    values = [
        (percent(one.summary["final_accuracy"], 1), f"test accuracy {one.label}") for one in (best, *without)
    ]
    planning = next(one for one in plannings if best in one.groups)
    plan = planning.followed_by(best)
    if plan is not None:
        values.append((money(plan.payment), "payment per round, all clients (R)"))
        values.append((percent(plan.conservation_rate, 1), "of the data kept per round (θ)"))
        values += predicted_facts(plan)
    cost, static = best.summary["server_cost"], planning.plan.no_update_cost
    if best.finished and best.policy != "static" and static > 0:
        word = "lower" if cost <= static else "higher"
        values.append((percent(abs(1 - cost / static), 1), f"{word} server cost than without update"))
    values.append((f"{best.summary['mean_age']:.2f}", "rounds, mean age of the samples"))
    return Facts(values)


def results_section(groups: Sequence[Group], arrival: Arrival | None) -> Section:
    """A table of the groups, and their training curves."""
    several = any(len(one.runs) > 1 for one in groups)
    shades = f"Lines are means over the seeds; shaded areas are {_shades(groups)}."
    hint = "Drag across a chart to zoom in, double-click to zoom out; click on the legend to hide a line."
    notes = [Paragraph(shades, "note")] * several + [Paragraph(hint, "note hint")]
    blocks: list[Block] = []
    for part in parts(groups):
        lines = [line_of(group) for group in part.groups]
        charts = [*score_charts(lines, arrival), cost_so_far_chart(lines)]
        table = recorded_table(part) if part.measure else summary_table(part.groups)
        free = [Paragraph(free_text(part))] if part.measure else []
        compared = statistics_blocks(part.groups)
        blocks += [*part.heading, table, *free, *compared, *notes, Charts(part.named(charts))]
        notes = []
    return Section("Results", "Results", blocks)


def statistics_blocks(groups: Sequence[Group]) -> list[Block]:
    """Intervals over the seeds and tests against a baseline; nothing if nothing was tested."""
    results = statistics_of([one.scored for one in groups if one.finished])
    if not results.tests:
        return []
    heads = ["runs", "seeds", score_head(results.rows), *HEADS]
    rows: list[list[Cell]] = []
    for row in results.rows:
        mean, *others = statistics_cells(row)
        sortable: Cell = mean if row.mean is None else (mean, row.mean)
        rows.append([row.name, (f"{len(row.seeds)}", len(row.seeds)), sortable, *others])
    told = ". ".join(text[:1].upper() + text[1:] for text in explanations(results))
    return [Table(f"Statistics over the seeds. {told}", heads, rows)]


def _shades(groups: Sequence[Group]) -> str:
    """What is around the lines: it depends on the number of seeds."""
    seeds = [len(one.runs) for one in groups if len(one.runs) > 1]
    band, spread = "95 % intervals of the mean", "the range from minimum to maximum"
    if all(number < LEAST for number in seeds):
        return spread
    return band if all(number >= LEAST for number in seeds) else f"{band}, or {spread} of few seeds"


def summary_table(groups: Sequence[Group]) -> Table:
    """One row per group."""
    several = any(len(one.runs) > 1 for one in groups)
    heads = ["runs", *["seeds"] * several, "accuracy (%)", *["± std"] * several]
    heads += ["best (%)", "loss", "samples held", "mean age", "payment", "cost U"]
    caption = "Payment and server cost over all rounds; samples held and their age: mean over all rounds"
    if several:
        caption += ". Rows are means over the seeds, ± the standard deviation of the accuracy"
    return Table(caption, heads, [_row(one, several) for one in groups])


def _row(one: Group, several: bool) -> list[Cell]:
    summary = one.summary
    final, best = (100 * summary[name] for name in ("final_accuracy", "best_accuracy"))
    seeds: list[Cell] = [(f"{len(one.runs)}", len(one.runs))]
    std = summary["accuracy_std"]
    around: list[Cell] = ["–" if std is None else (f"{100 * std:.2f}", 100 * std)]
    return [
        one.name,
        *(seeds if several else []),
        (f"{final:.2f}", final),
        *(around if several else []),
        (f"{best:.2f}", best),
        (f"{summary['final_loss']:.4f}", summary["final_loss"]),
        (f"{summary['mean_volume']:,.0f}", summary["mean_volume"]),
        (f"{summary['mean_age']:.2f}", summary["mean_age"]),
        (money(summary["total_payment"]), summary["total_payment"]),
        (number(summary["server_cost"]), summary["server_cost"]),
    ]


def data_section(groups: Sequence[Group], plannings: Sequence[Planning], arrival: Arrival | None) -> Section:
    """Volume, collection, age and classes, as planned and as measured."""
    owners = {group: planning for planning in plannings for group in planning.groups}
    blocks: list[Block] = []
    for part in parts(groups):
        lines = {line_of(group): owners[group].followed_by(group) for group in part.groups}
        plans = {line: plan for line, plan in lines.items() if plan is not None}
        charts = data_charts(list(lines), plans)
        if part.measure is not RMSE:
            charts.append(classes_chart(list(lines), arrival))
        paragraphs = [PLANNED if plans else "" if part.measure else OWN, *missing_texts(part)]
        said = [Paragraph(one) for one in paragraphs if one]
        blocks += [*part.heading, *said, Charts(part.named(charts))]
    return Section("Data", "Data: planned and measured", blocks)


@dataclass(frozen=True)
class _Omission:
    """A client whose updates were left out for one kind of reason, and the rounds in which they were."""

    run: str
    client: int
    reason: str
    rounds: list[int]


def left_out_section(groups: Sequence[Group]) -> list[Section]:
    """The updates that were not aggregated as they were, by client and reason; none if there are none."""
    shown = [stored for one in groups for stored in one.every if stored.run in one.runs]
    omissions = sorted((o for stored in shown for o in _omissions(stored)), key=lambda o: -len(o.rounds))
    if not omissions:
        return []
    blocks: list[Block] = [
        Paragraph(_left_out(omissions)),
        Charts([used_chart([line_of(group) for group in groups])]),
        _omission_table(omissions, len(shown) > 1),
    ]
    return [Section("Left out", "Updates left out: missing, refused or scaled down", blocks)]


def _omissions(stored: Stored) -> Iterator[_Omission]:
    """A run's omissions; reasons that differ only in their numbers are one."""
    together: dict[tuple[int, str], _Omission] = {}
    for record in stored.run.records:
        reasons = dict.fromkeys(record.dropped, SILENT)
        reasons |= {int(client): reason for client, reason in record.refused.items()}
        reasons |= {
            int(k): f"{SCALED}, {x:.3g} times the median size" for k, x in (record.bounded or {}).items()
        }
        for client, reason in reasons.items():
            new = _Omission(name_of(stored), client, reason, [])
            together.setdefault((client, re.sub(r"\d+", "0", reason)), new).rounds.append(record.round)
    yield from together.values()


def _left_out(omissions: Sequence[_Omission]) -> str:
    silent = sum(len(one.rounds) for one in omissions if one.reason == SILENT)
    scaled = sum(len(one.rounds) for one in omissions if one.reason.startswith(SCALED))
    refused = sum(len(one.rounds) for one in omissions) - silent - scaled
    parts = [
        f"{count(silent, 'update')} missing" if silent else "",
        f"{count(refused, 'update')} refused" if refused else "",
        f"{count(scaled, 'update')} scaled down, because they were far larger than others" if scaled else "",
    ]
    return (
        f"{', '.join(filter(None, parts))}. A client whose update is missing or invalid is left out of "
        "the average of that round; the round continues with the others."
    )


def _omission_table(omissions: Sequence[_Omission], several: bool) -> Table:
    rows: list[list[Cell]] = [
        [
            *([one.run] if several else []),
            (f"{one.client}", one.client),
            (f"{len(one.rounds):,}", len(one.rounds)),
            (f"{one.rounds[0]}", one.rounds[0]),
            (f"{one.rounds[-1]}", one.rounds[-1]),
            one.reason,
        ]
        for one in omissions[:ROWS]
    ]
    part = f"; the {ROWS} most frequent of {len(omissions):,}" if len(omissions) > ROWS else ""
    heads = [*["run"] * several, "client", "rounds", "first", "last", "reason"]
    return Table(f"Clients left out, by reason{part}", heads, rows)


def _pairs(groups: Sequence[Group]) -> list[tuple[Group, Group]]:
    """The groups that differ only by whether data are updated."""
    static = {one.family: one for one in groups if one.policy == "static"}
    return [(one, static[one.family]) for one in groups if one.policy == "dufl" and one.family in static]


def _best(groups: Sequence[Group]) -> tuple[Group, ...]:
    """The method with the highest accuracy with data update, and the same without; or the best of any."""
    candidates: list[tuple[Group, ...]] = list(_pairs(groups)) or [(one,) for one in groups]
    return max(candidates, key=lambda pair: pair[0].summary["final_accuracy"])
