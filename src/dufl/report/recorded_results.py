"""The results of recorded runs in the report: means over time, beside the predictions that need no model.

Runs are compared where they were tested on the same periods. Runs on other periods, and simulated runs, form
other parts of the report.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dufl.experiment.recorded import periods_of, time_range, window_length
from dufl.experiment.stored import Group, stopped
from dufl.experiment.train import short_name
from dufl.formatting import count, money, number, percent
from dufl.report.chart_spec import Chart
from dufl.report.measure import RMSE, UNKNOWN, Measure, measure_of
from dufl.report.page import Cell, Facts, Heading, Table
from dufl.report.planning import Planning, planned_runs
from dufl.report.predictions import predicted_facts
from dufl.report.run_charts import Curves


@dataclass(frozen=True, eq=False)
class Part:
    """Groups that can be compared with each other.

    Attributes:
        groups: simulated, or tested on the same periods of the same recording.
        measure: of recorded runs; None for simulated ones.
        place: its number, from 1.
        alone: whether there is no other part.
    """

    groups: list[Group]
    measure: Measure | None
    place: int
    alone: bool

    @property
    def name(self) -> str:
        """What its runs have in common."""
        if self.measure is None:
            return "Simulated data"
        one = self.groups[0]
        time = time_range(periods_of(one.runs[0].records))
        rounds = count(one.config.game.num_rounds, "round")
        return f"{short_name(one.config.data.dataset)}, {time}, {rounds}"

    @property
    def heading(self) -> list[Heading]:
        """Its heading; none if there is no other part."""
        return [] if self.alone else [Heading(self.name)]

    def named(self, charts: Sequence[Chart]) -> list[Chart]:
        """Its charts, with names that no other part has."""
        prefix = "" if self.place == 1 else f"part_{self.place}_"
        return [replace(chart, name=prefix + chart.name) for chart in charts] if prefix else list(charts)


def parts(groups: Sequence[Group]) -> list[Part]:
    """The groups by what they were tested on, in their order."""
    together: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        together.setdefault(_key(group), []).append(group)
    alone = len(together) == 1
    return [
        Part(some, measure_of([run for group in some for run in group.runs]), place, alone)
        for place, some in enumerate(together.values(), 1)
    ]


def _key(group: Group) -> tuple[Any, ...]:
    first = group.runs[0].records[0].period
    if first is None:
        return ()
    config, regression = group.config, any(run.regression for run in group.runs)
    edges = (first.begin, first.end, first.dated, first.samples, first.no_change, first.majority)
    return (str(config.data.dataset), config.game.num_rounds, regression, str(edges))


def line_of(group: Group) -> Curves:
    """A group as it is drawn."""
    return Curves(group.name, group.policy, planned_runs(group), group.family)


def after(one: Group) -> str:
    """After how many rounds a result is."""
    if one.finished:
        return f" after {count(one.rounds, 'round')}"
    return f" ({stopped(one.rounds, one.config)})"


def best_of(part: Part) -> tuple[Group, Group | None]:
    """The group with the best mean over the rounds, and the same without data update, if it is another."""
    assert part.measure is not None
    measure, best = part.measure, part.groups[0]
    for one in part.groups[1:]:
        if measure.is_better(one.summary[measure.mean], best.summary[measure.mean]):
            best = one
    static = [one for one in part.groups if one.policy == "static" and one.family == best.family]
    return best, static[0] if static and static[0] is not best else None


def recorded_headline(part: Part, plannings: Sequence[Planning]) -> str:
    """The best mean over the rounds, beside no data update and no model."""
    measure = part.measure
    assert measure is not None
    best, static = best_of(part)
    mean = best.summary[measure.mean]
    policy, _, rest = best.label.partition(", ")
    if len(part.groups) > 1:
        text = f"Best result: {policy}{f' ({rest})' if rest else ''}, mean test {measure.name} is "
    else:
        text = f"{policy[:1].upper()}{policy[1:]}, mean test {measure.name} is "
    over = after(best).replace(" after ", " over ", 1) if best.finished else after(best)
    text += f"{measure.text(mean, 1)}{over}"
    if static is not None:
        value = static.summary[measure.mean]
        text += f"; without data update, {measure.text(value, 1)} ({measure.difference(mean, value)})"
    return f"{text}. {_without_model(part, mean, best)}{_offer(best, plannings)}"


def _without_model(part: Part, mean: float, best: Group) -> str:
    """Whether the best model beats the predictions that need none."""
    measure = part.measure
    assert measure is not None
    label, value = measure.best_free(best.summary)
    what = {
        "no change": "the previous label",
        "majority class": "the most frequent label so far",
        "mean label": "the mean label so far",
    }[label]
    if measure.is_better(value, mean):
        none = "None of these models beats" if len(part.groups) > 1 else "The model does not beat"
        return f"{none} a prediction without a model: predicting {what} has {measure.text(value, 1)}."
    told = f"predicting {what}, which needs no model, has {measure.text(value, 1)}"
    return f"In comparison, {told} (the model: {measure.difference(mean, value)})."


def _offer(best: Group, plannings: Sequence[Planning]) -> str:
    if best.policy != "dufl":
        return ""
    plan = next(one for one in plannings if best in one.groups).plan
    return (
        f" The server pays {money(plan.payment)} per round, and clients keep "
        f"{percent(plan.conservation_rate, 1)} of their data from one round to the next."
    )


def recorded_facts(part: Part, plannings: Sequence[Planning]) -> Facts:
    """Key figures of the best group of a part."""
    measure = part.measure
    assert measure is not None
    best, static = best_of(part)
    shown = [best] if static is None else [best, static]
    values = [
        (measure.text(one.summary[measure.mean], 1), f"mean test {measure.name} {_of(one)}") for one in shown
    ]
    if measure is RMSE:
        values.append((_plain(best.summary["mean_r2"]), f"mean R² {_of(best)}"))
    values += [
        (measure.text(best.summary[key], 1), f"{label}, a prediction without a model")
        for label, key, _ in measure.free
    ]
    plan = next(one for one in plannings if best in one.groups).followed_by(best)
    if plan is not None:
        values.append((money(plan.payment), "payment per round, all clients (R)"))
        values.append((percent(plan.conservation_rate, 1), "of the data kept per round (θ)"))
        values += predicted_facts(plan)
    values.append((f"{best.summary['mean_age']:.2f}", "rounds, mean age of the samples"))
    if best.summary["shortfall"]:
        values.append((f"{best.summary['shortfall']:,.0f}", "samples asked for that were not recorded"))
    return Facts(values)


def _of(group: Group) -> str:
    return group.label if group.label.startswith("with") else f"of {group.label}"


def _plain(value: float) -> str:
    return UNKNOWN if value != value else f"{value:.3f}".replace("-", "−")


def recorded_table(part: Part) -> Table:
    """One row per group."""
    measure = part.measure
    assert measure is not None
    several = any(len(one.runs) > 1 for one in part.groups)
    squared = measure is RMSE
    heads = ["runs", *["seeds"] * several, f"mean {measure.head}", *["± std"] * several, "last round"]
    heads += [*["mean R²"] * squared, *["mean loss"] * (not squared), "samples held", "mean age", "missing"]
    heads += ["payment", "cost U"]
    caption = (
        f"Mean {measure.name} over the rounds, each tested on its period before anybody trained on it. "
        "Samples missing, payment and server cost over all rounds; samples held and their age: mean over all "
        "rounds"
    )
    if several:
        caption += f". Rows are means over the seeds, ± the standard deviation of the mean {measure.name}"
    return Table(caption, heads, [_row(one, several, measure) for one in part.groups])


def free_text(part: Part) -> str:
    """The mean scores of the predictions that need no model."""
    measure, summary = part.measure, part.groups[0].summary
    assert measure is not None
    scores = [f"{label} {measure.text(summary[key])}" for label, key, _ in measure.free]
    second = "mean label" if measure is RMSE else "most frequent label"
    return (
        f"Predictions that need no model, mean {measure.name} over the rounds: {', '.join(scores)}. "
        f"“No change” predicts the label of the previous sample, the other the {second} so far."
    )


def _number(measure: Measure, value: float | None) -> Cell:
    text = measure.cell(value)
    return text if value is None or text == UNKNOWN else (text, measure.drawn(value))


def _row(one: Group, several: bool, measure: Measure) -> list[Cell]:
    summary = one.summary
    seeds: list[Cell] = [(f"{len(one.runs)}", len(one.runs))]
    second = summary["mean_r2" if measure is RMSE else "mean_loss"]
    return [
        one.name,
        *(seeds if several else []),
        _number(measure, summary[measure.mean]),
        *([_number(measure, summary[measure.std])] if several else []),
        _number(measure, summary[measure.final]),
        UNKNOWN if second != second else (f"{second:.4f}", second),
        (f"{summary['mean_volume']:,.0f}", summary["mean_volume"]),
        (f"{summary['mean_age']:.2f}", summary["mean_age"]),
        (f"{summary['shortfall']:,.0f}", summary["shortfall"]),
        (money(summary["total_payment"]), summary["total_payment"]),
        (number(summary["server_cost"]), summary["server_cost"]),
    ]


def missing_texts(part: Part) -> list[str]:
    """What recorded streams did not have, and what the window policies are."""
    if part.measure is None:
        return []
    texts = []
    if any(window_length(one.policy) is not None and not one.summary["total_payment"] for one in part.groups):
        texts.append(
            "Without a payment, the policies keep-all, fresh-only and window-M collect everything that is "
            "recorded: they show what data is worth, not what it costs."
        )
    short = [_missing(one) for one in part.groups if one.summary["shortfall"]]
    if short:
        texts.append(f"Samples that were asked for and not recorded: {'; '.join(short)}.")
    else:
        texts.append("The recording has every sample that was asked for.")
    return texts


def _missing(one: Group) -> str:
    """The missing samples of a group, and per client and round."""
    rounds, clients = max(one.rounds - 1, 1), one.config.game.clients.size
    each = one.summary["shortfall"] / rounds / clients
    return f"{one.summary['shortfall']:,.0f} {_of(one)} ({number(each)} per client and round)"
