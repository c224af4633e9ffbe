"""The finite game of the paper's Algorithm 1, exactly: MRBoost with certified intervals, the value
by linear programming, column generation and double oracle, the two weak-learning conditions."""

from .algorithm import Boosting, Learner, mrboost, regret_bound, theorem_bound
from .conditions import (
    Condition,
    proposition_example,
    robboost_weak_learning,
    weak_learning,
    worst_perturbation,
)
from .oracle import OracleSolution, column_generation, double_oracle
from .payoff import Payoff, SAug
from .value import Solution, solve

__all__ = [
    "Boosting",
    "Condition",
    "Learner",
    "OracleSolution",
    "Payoff",
    "SAug",
    "Solution",
    "column_generation",
    "double_oracle",
    "mrboost",
    "proposition_example",
    "regret_bound",
    "robboost_weak_learning",
    "solve",
    "theorem_bound",
    "weak_learning",
    "worst_perturbation",
]
