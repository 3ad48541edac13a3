"""Policies decide what the server pays for fresh data, and what every buffer keeps and collects.

A policy is any object with the four methods of `Policy`. What they return may depend on the client, the round
and the size of the buffer, and on no other state. A run can therefore be resumed after any round.

    planned      follow a plan: `dufl`, `static`, `algorithm1`, `fixed-R-θ`, and `keep-all`, `fresh-only`
    strategies   the paper's two baselines: `zero`, `random`
    window       keep the samples of the last rounds: `window-M`
    periodic     replace the buffer every M rounds: `periodic-M`
    age_price    pay more when data is old: `age-price`
    names        which names there are
    making       from a name to a policy
"""

from dufl.learning.policies.age_price import AgePrice
from dufl.learning.policies.making import make_policy
from dufl.learning.policies.names import POLICIES, Name, check_policy, parse_name
from dufl.learning.policies.periodic import Periodic
from dufl.learning.policies.planned import Planned, no_update
from dufl.learning.policies.policy import Policy
from dufl.learning.policies.strategies import RandomStrategy, ZeroStrategy
from dufl.learning.policies.window import TakeAll, Window

__all__ = [
    "POLICIES",
    "AgePrice",
    "Name",
    "Periodic",
    "Planned",
    "Policy",
    "RandomStrategy",
    "TakeAll",
    "Window",
    "ZeroStrategy",
    "check_policy",
    "make_policy",
    "no_update",
    "parse_name",
]
