"""Which clients were left out of which rounds, and why: they did not answer, or their update was refused."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dufl.formatting import count
from dufl.report.interactive import Chart, axes
from dufl.report.page import Cell, Section, paragraph, table
from dufl.report.run_charts import over_rounds
from dufl.report.setup_section import name_of
from dufl.report.stored import Group, Stored

ROWS = 100  # of the table at most
SILENT = "did not answer"


@dataclass(frozen=True)
class _Omission:
    """A client that was left out for one kind of reason, and the rounds in which it was."""

    run: str
    client: int
    why: str
    rounds: list[int]


def left_out_section(groups: Sequence[Group]) -> list[Section]:
    """How many updates were used over the rounds, and whose were not; nothing if all were."""
    shown = [stored for one in groups for stored in one.every if stored.run in one.runs]
    found = sorted((one for stored in shown for one in _omissions(stored)), key=lambda one: -len(one.rounds))
    if not found:
        return []
    chart = over_rounds(
        Chart(
            "used",
            "Updates that were used",
            [],
            axes("round t", "clients", yaxis={"rangemode": "tozero"}),
            {},
        ),
        groups,
        lambda group: group.curve("participants"),
        "%{y:.3g}",
    )
    return [
        Section(
            "Left out",
            "Left out: updates that did not come or were refused",
            [paragraph(_words(found)), [chart], _table(found, len(shown) > 1)],
        )
    ]


def _omissions(stored: Stored) -> Iterator[_Omission]:
    """A run's, those that differ by nothing but numbers together."""
    together: dict[tuple[int, str], _Omission] = {}
    for record in stored.run.records:
        reasons = dict.fromkeys(record.dropped, SILENT)
        reasons |= {int(client): why for client, why in record.refused.items()}
        for client, why in reasons.items():
            new = _Omission(name_of(stored), client, why, [])
            together.setdefault((client, re.sub(r"\d+", "0", why)), new).rounds.append(record.round)
    yield from together.values()


def _words(found: Sequence[_Omission]) -> str:
    silent = sum(len(one.rounds) for one in found if one.why == SILENT)
    refused = sum(len(one.rounds) for one in found) - silent
    said = [
        f"{count(silent, 'answer')} did not come" if silent else "",
        f"{count(refused, 'update was', 'updates were')} refused" if refused else "",
    ]
    return (
        f"{' and '.join(filter(None, said))}. A client is not in the average of a round in which its update "
        "is missing or makes no sense; the round goes on with the others."
    )


def _table(found: Sequence[_Omission], several: bool) -> str:
    rows: list[list[Cell]] = [
        [
            *([one.run] if several else []),
            (f"{one.client}", one.client),
            (f"{len(one.rounds):,}", len(one.rounds)),
            (f"{one.rounds[0]}", one.rounds[0]),
            (f"{one.rounds[-1]}", one.rounds[-1]),
            one.why,
        ]
        for one in found[:ROWS]
    ]
    part = f"; the {ROWS} who were most often of {len(found):,}" if len(found) > ROWS else ""
    heads = [*["run"] * several, "client", "rounds", "first", "last", "why"]
    return table(f"Who was left out, and why{part}", heads, rows)
