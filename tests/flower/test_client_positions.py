"""A client on Flower with a live source: killed between any two steps, it collects each sample once."""

import json
import random
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from broker import Broker, needs_mosquitto
from dufl.data.collector import Collector
from dufl.data.live.mqtt_stream import MqttStream
from dufl.data.live.table_stream import TableStream
from dufl.errors import InputError
from dufl.flower.client_store import ClientProfile, ClientStore
from dufl.game.negotiation import Announcement
from dufl.game.parameters import Offer

ROUNDS, FRESH = 60, 4


class Killed(Exception):  # noqa: N818
    """The client is gone."""


def write(folder: Path, numbers: range) -> None:
    text = "".join(f"{n},{n}\n" for n in numbers)
    (folder / f"{numbers[0]:05}.csv").write_text("value,label\n" + text)


def plan(store: ClientStore) -> None:
    """Every round conserves all samples and collects a few."""
    size = 10 + FRESH * np.arange(ROUNDS)
    facts = {"first_round": 0, "size": size.tolist(), "keep": size[:-1].tolist(), "joined": 0}
    store._buffer.remember(plan=json.dumps(facts))


def train(profile: ClientProfile, round: int, moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One message of a round, as the mod processes it; the client is killed before step `moment`."""
    steps = count()

    def step() -> None:
        if next(steps) == moment:
            raise Killed

    with ClientStore(profile) as store, monkeypatch.context() as patch:
        advance, unlink = store._buffer.advance, Path.unlink

        def slow_advance(*arguments: object, **facts: str) -> None:
            step()
            advance(*arguments, **facts)  # type: ignore[arg-type]

        def slow_unlink(path: Path, missing_ok: bool = False) -> None:
            step()
            unlink(path, missing_ok=missing_ok)

        patch.setattr(store._buffer, "advance", slow_advance)
        patch.setattr(Path, "unlink", slow_unlink)
        snapshot = store.enter(round)
        collector = Collector(profile.stream, snapshot.samples)
        collector.start(wanted := store.collection(round), round)
        found = collector.finish()
        step()
        if wanted:
            store.put_aside(round, found.samples, found.position)
        step()


@pytest.mark.parametrize("one_stream", [False, True])
def test_each_sample_joins_once(tmp_path: Path, one_stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages come twice, rounds are missed, and the client is killed, with one stream or a new one each."""
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder, range(15))
    stream, chance, kills = TableStream(folder), random.Random(3), 0

    def profile() -> ClientProfile:
        source = stream if one_stream else TableStream(folder)
        return ClientProfile(0, tmp_path / "client.sqlite", source, 10, 1e-4, 1e-5)

    with ClientStore(profile()) as store:
        plan(store)
    written, round = 15, 0
    while round < ROUNDS - 1:
        if chance.random() < 0.5:
            write(folder, range(written, written + 9))
            written += 9
        try:
            train(profile(), round, chance.randrange(12), monkeypatch)
        except Killed:
            kills += 1
            continue
        round = min(round + chance.choice([0, 1, 1, 1, 3]), ROUNDS - 1)
    with ClientStore(profile()) as store:
        labels = store.enter(round).samples.labels.tolist()
    assert labels == list(range(len(labels)))  # in order, none twice, none left out
    assert len(labels) > 100
    assert kills > 10


def test_a_client_begins_with_less_of_what_its_stream_delivered(tmp_path: Path) -> None:
    """The excess is discarded when round 0 begins, once; its position in the stream does not change."""
    write(tmp_path, range(300))
    announcement = Announcement(Offer(payment=1.0, conservation_rate=0.8), np.full(6, 300.0), trim_start=True)
    profile = ClientProfile(0, tmp_path / "client.sqlite", TableStream(tmp_path), 200, 1e-3, 1e-4)
    with ClientStore(profile) as store:
        for _ in range(2):  # also if the server asks again
            planned = store.best_response(announcement)
            volumes = store.commit(announcement, 0)
        assert planned[0] < 150
        committed = store.committed(0)
        assert committed == volumes[0] == round(planned[0])
    for _ in range(2):
        with ClientStore(profile) as store:
            first = store.enter(0)
            assert len(first.ids) == committed
            assert set(first.ages) == {1}
    with ClientStore(profile) as store:
        later = store.enter(1)
    fresh = later.samples.labels[later.ages == 1]
    assert fresh.tolist() == list(range(200, 200 + len(fresh)))
    assert set(later.samples.labels[later.ages == 2]) <= set(first.samples.labels)


@needs_mosquitto
@pytest.mark.parametrize("named", [True, False])
def test_each_message_joins_once(tmp_path: Path, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection for every message of the server; those of the last one are delivered again."""
    chance, kills, round, sent = random.Random(4), 0, 0, 30
    with Broker(tmp_path) as broker:

        def connect(wait: float = 0.4) -> MqttStream:
            return MqttStream("samples", 1, "client", "127.0.0.1", broker.port, wait=wait)

        def publish(numbers: range) -> None:
            ids = [{"id": n} if named else {} for n in numbers]
            broker.publish(*({"x": [n], "y": n} | id for n, id in zip(numbers, ids, strict=True)))

        with connect() as stream:
            stream.collect(1, 0)  # subscribed
        publish(range(sent))
        while round < 12:
            if chance.random() < 0.5:
                publish(range(sent, sent + 9))
                sent += 9
            with connect() as stream:
                profile = ClientProfile(0, tmp_path / "client.sqlite", stream, 10, 1e-4, 1e-5)
                with ClientStore(profile) as store:
                    plan(store)
                try:
                    train(profile, round, chance.randrange(8), monkeypatch)
                except Killed:
                    kills += 1
                    continue
            round += chance.choice([0, 1, 1])
        with ClientStore(profile) as store:
            labels = store.enter(round - 1).samples.labels.tolist()
    assert sorted(labels) == list(range(len(labels)))
    assert len(labels) >= 40
    assert kills > 3


def test_a_client_cannot_start_without_a_sample(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    profile = ClientProfile(0, tmp_path / "client.sqlite", TableStream(tmp_path / "in"), 10, 1e-4, 1e-5)
    with pytest.raises(InputError, match="stream must be able to deliver the first samples"):
        ClientStore(profile)
    write(tmp_path / "in", range(3))
    with ClientStore(profile) as store:
        assert len(store._buffer) == 3
