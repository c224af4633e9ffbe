"""The finite game of the paper's equation (2), solved exactly.

    payoff = Payoff(SAug(y, classes).labels(labels))  # classifiers × perturbed points
    mrboost(payoff, rounds=1000)                      # Algorithm 1, with certified intervals
    solve(payoff)                                     # the value, by linear programming
    weak_learning(payoff)                             # the condition of Theorem 1

``examples/double_oracle.py`` solves games too large to write down as a matrix.
"""

from .algorithm import Boosting, Learner, mrboost, regret_bound, theorem_bound
from .conditions import (
    Condition,
    proposition_example,
    robboost_weak_learning,
    weak_learning,
    worst_perturbation,
)
from .payoff import Payoff, SAug
from .value import Solution, solve

__all__ = ["Boosting", "Condition", "Learner", "Payoff", "SAug", "Solution", "mrboost"]
__all__ += ["proposition_example", "regret_bound", "robboost_weak_learning", "solve"]
__all__ += ["theorem_bound", "weak_learning", "worst_perturbation"]
