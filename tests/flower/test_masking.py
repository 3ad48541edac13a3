"""Masked sums: exact in the sum, noise in every part."""

import numpy as np
import pytest

from dufl.errors import InputError
from dufl.flower.masking import UNIT, mask, new_key, public_key, unmask

CLIENTS = 7
KEYS = {client: new_key() for client in range(CLIENTS)}
ROSTER = {client: public_key(key) for client, key in KEYS.items()}


def answers(question: str = "one") -> tuple[np.ndarray, np.ndarray]:
    values = np.random.default_rng(0).uniform(0, 1e4, (CLIENTS, 3, 20))
    hidden = np.array([mask(values[k], k, KEYS[k], ROSTER, question) for k in range(CLIENTS)])
    return values, hidden


def test_the_sum_is_right() -> None:
    values, hidden = answers()
    assert np.abs(unmask(hidden.sum(axis=0)) - values.sum(axis=0)).max() <= CLIENTS * UNIT / 2


def test_every_part_is_noise() -> None:
    values, hidden = answers()
    for k in range(CLIENTS):
        high = (hidden[k] >> np.uint64(60)).ravel()  # would be 0 for any honest number of samples
        assert len(np.unique(high)) > 8
        correlation = np.corrcoef(hidden[k].ravel().astype(float), values[k].ravel())[0, 1]
        assert abs(correlation) < 0.5


def test_all_but_one_are_noise_too() -> None:
    _, hidden = answers()
    for left_out in range(CLIENTS):
        rest = np.delete(hidden, left_out, axis=0).sum(axis=0)
        assert len(np.unique((rest >> np.uint64(60)).ravel())) > 8


def test_another_question_has_other_masks() -> None:
    _, one = answers("one")
    _, two = answers("two")
    assert not (one == two).any()


def test_the_same_question_has_the_same_masks() -> None:
    assert (answers()[1] == answers()[1]).all()


def test_two_clients() -> None:
    keys = {3: new_key(), 8: new_key()}
    roster = {client: public_key(key) for client, key in keys.items()}
    parts = [mask(np.array([1.5, 0.0]), client, key, roster, "q") for client, key in keys.items()]
    assert unmask(parts[0] + parts[1]).tolist() == [3.0, 0.0]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e15])
def test_what_cannot_be_a_number_of_samples(value: float) -> None:
    with pytest.raises(InputError) as caught:
        mask(np.array([value]), 0, KEYS[0], ROSTER, "q")
    assert caught.value.field == "values"


def test_a_roster_with_another_key_of_mine() -> None:
    with pytest.raises(InputError) as caught:
        mask(np.ones(2), 0, KEYS[0], ROSTER | {0: ROSTER[1]}, "q")
    assert caught.value.field == "roster"
