"""What the audit says about the updates of each client on Flower, and whose payments were held back."""

from collections.abc import Mapping, Sequence

import numpy as np

from dufl.experiment.stored import Group, Stored
from dufl.formatting import count
from dufl.learning.federation import Record
from dufl.report.chart_spec import BLUE, GREY, RED, Axis, Chart, Series
from dufl.report.page import Block, Cell, Charts, Paragraph, Section, Table
from dufl.report.setup_section import name_of

DRAWN = 30  # clients in a chart at most: those with the lowest scores
ROWS = 100  # of the table at most
TEXT = (
    "The score of a client is the running mean of what its updates bring on samples of the server: 1 is a "
    "typical client, and 0 or less brings nothing. Its bounds hold with a probability of 95 %."
)


def audit_section(groups: Sequence[Group]) -> list[Section]:
    """The scores of each audited run; none if there are none."""
    shown = [stored for one in groups for stored in one.every if stored.run in one.runs]
    blocks: list[Block] = []
    for stored in shown:
        records = [record for record in stored.run.records if record.scores]
        if records:
            name = f" ({name_of(stored)})" if len(shown) > 1 else ""
            chart = audit_chart(records, f"audit-{len(blocks)}" if blocks else "audit")
            blocks += [Paragraph(_headline(stored) + name), Charts([chart]), _table(records, name)]
    return [Section("Audit", "Audit: what updates bring", [Paragraph(TEXT), *blocks])] if blocks else []


def _headline(stored: Stored) -> str:
    held = {client for record in stored.run.records for client in record.held or {}}
    if not held:
        return "No payment was held back."
    named = ", ".join(sorted(held, key=int)[:20])
    return f"Payments of {count(len(held), 'client')} were held back: {named}."


def audit_chart(records: Sequence[Record], file: str = "audit") -> Chart:
    """The score of each client over the rounds; the bounds of those whose payments were held back."""
    held = {client for record in records for client in record.held or {}}
    scores = _scores(records)
    lowest = sorted(scores, key=lambda client: scores[client][-1, 1])[:DRAWN]
    series: list[Series] = []
    for client in sorted(lowest, key=lambda client: (client in held, int(client))):
        rounds, mean, low, high = scores[client].T
        color = RED if client in held else BLUE
        width, name = (2.0 if client in held else 1.0), f"client {client}"
        series.append(Series(name, rounds, mean, color, width=width))
        if client in held:
            ends = low[1:], high[1:]  # one value has no bounds
            band = Series(name, rounds[1:], [], color, "band", *ends, opacity=0.2, hover="", owner=name)
            series.append(band)
    span = np.array([records[0].round, records[-1].round])
    series.insert(0, Series("nothing", span, np.zeros(2), GREY, dash="dash", hover=""))
    rows = [(client, *row) for client in sorted(scores, key=int) for row in scores[client].tolist()]
    columns = zip(*rows, strict=True)
    data = dict(zip(("client", "round", "score", "low", "high"), columns, strict=True))
    note = f"The {DRAWN} clients with the lowest scores are shown." if len(scores) > DRAWN else ""
    title = "Scores of the clients; red: payments were held back"
    return Chart(file, title, Axis("round t", integers=True), Axis("score"), series, data, note)


def _scores(records: Sequence[Record]) -> Mapping[str, np.ndarray]:
    """The rounds, scores and bounds of every client, of shape (rounds, 4)."""
    rows: dict[str, list[list[float]]] = {}
    for record in records:
        for client, score in (record.scores or {}).items():
            rows.setdefault(client, []).append([record.round, *score])
    return {client: np.array(each) for client, each in rows.items()}


def _table(records: Sequence[Record], name: str) -> Table:
    scores = _scores(records)
    reasons: dict[str, list[tuple[int, str]]] = {}
    for record in records:
        for client, reason in (record.held or {}).items():
            reasons.setdefault(client, []).append((record.round, reason))
    ordered = sorted(scores, key=lambda client: (-len(reasons.get(client, ())), scores[client][-1, 1]))
    rows: list[list[Cell]] = []
    for client in ordered[:ROWS]:
        _, mean, low, high = scores[client][-1].tolist()
        held = reasons.get(client, [])
        rows.append(
            [
                (client, int(client)),
                (f"{mean:.2f}", mean),
                f"{low:.2f} to {high:.2f}",
                (f"{len(held):,}", len(held)),
                (f"{held[0][0]}", held[0][0]) if held else "–",
                held[-1][1] if held else "–",
            ]
        )
    part = f"; {ROWS} of {len(ordered):,} clients" if len(ordered) > ROWS else ""
    heads = ["client", "score", "bounds", "rounds held back", "first", "last reason"]
    return Table(f"Scores at the end{name}{part}", heads, rows)
