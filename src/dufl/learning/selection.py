"""Client selection: which clients train in a round, and which of them do not reply.

    random   every subset of m clients is equally likely
    age      the m clients with the highest Whittle index of the age of their information

C. Wu, M. Xiao, J. Wu, Y. Xu, J. Zhou, H. Sun, *Towards Federated Learning on Fresh Datasets* (IEEE MASS
2023), select clients as the arms of a restless bandit by Whittle's index, with the age of information as the
state of an arm. The index used here is that of an arm whose age becomes 1 with probability p if it is
selected, and otherwise grows by 1, at a cost of α times the age in every round, in closed form:

    C(h) = α·p/2·h·(h + 2/p − 1)

I. Kadota, A. Sinha, E. Uysal-Biyikoglu, R. Singh, E. Modiano, *Scheduling Policies for Minimizing Age of
Information in Broadcast Wireless Networks* (IEEE/ACM Transactions on Networking 26, 2018). It is the price of
a selection at which selecting the client from age h on and from age h + 1 on cost the same on average.

h is the number of rounds since the client last replied; 1 if it did in the previous round. This is the age of
what the server has learned from the client. The mean age of the client's own samples would not do: it follows
the plan, whether the client is selected or not. Any reply counts, even if the update cannot be used.
Otherwise a client that always sends nonsense would be selected forever. α is the client's volume D_k(t), as
in FedAvg, and p = 1 − client_dropout. Ties go to the lower client number. All clients alike are therefore
selected in turn, each after at most ⌈N/m⌉ rounds. For p = 1 and many clients, a client is selected about
every 1/√α rounds, up to a common factor.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from dufl.learning.settings import Training

ClientSelection = Literal["random", "age"]
Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The clients that can be selected, for selection by age.

    Attributes:
        clients: their numbers, in ascending order.
        volumes: the number of samples of each.
        ages: the number of rounds since each last replied.
    """

    clients: Integers
    volumes: Floats
    ages: Integers


def participants(
    settings: "Training",
    num_clients: int,
    round: int,
    candidates: Candidates,
    members: Integers | None = None,
) -> tuple[list[int], list[int]]:
    """The selected clients of a round: those that reply, and those that drop out.

    Only `members` are selected, the clients that take part; by default all.
    """
    selected = np.arange(num_clients) if members is None else members
    if settings.fraction_train < 1 and selected.size:
        count = max(1, int(np.rint(settings.fraction_train * selected.size)))
        if settings.client_selection == "age":
            selected = _by_age(candidates, count, 1 - settings.client_dropout)
        else:
            generator = np.random.default_rng([settings.seed, round + 1, 9])
            selected = selected[np.sort(generator.choice(selected.size, count, replace=False))]
    if not settings.client_dropout:
        return selected.tolist(), []
    generator = np.random.default_rng([settings.seed, round + 1, 8])
    dropped = generator.random(num_clients)[selected] < settings.client_dropout
    return selected[~dropped].tolist(), selected[dropped].tolist()


def whittle_index(volumes: Floats, ages: Integers, success: float) -> Floats:
    """C(h) of every client.

    >>> whittle_index(np.array([10.0, 10.0, 90.0]), np.array([1, 3, 1]), success=1.0)
    array([10., 60., 90.])
    """
    return np.asarray(volumes * success / 2 * ages * (ages + 2 / success - 1))


def _by_age(candidates: Candidates, count: int, success: float) -> Integers:
    index = whittle_index(candidates.volumes, candidates.ages, success)
    first = np.lexsort((candidates.clients, -index))[:count]
    return np.sort(candidates.clients[first])
