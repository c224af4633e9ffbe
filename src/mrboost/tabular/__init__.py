"""Robust classifiers for tables, with certificates: ``MRBoostClassifier``.

    eps = column_eps(X, 0.05)                 # each entry may be off by 5 % of its column's range
    model = MRBoostClassifier(eps).fit(X, y)
    print(model.certify(X_test, y_test))      # robust accuracy that is proved, not attacked
    model.plot_certificate(X_test, y_test, row=7)

``fit`` cuts columns into cells (``cells``), grows trees on them if asked for (``growing``), and
finds the scores of cells or leaves by a solver (``smooth``, ``lp``, ``hedge``); ``fitting`` does
that, and tries on held-out rows what is left open. ``certify`` takes the least scores over a ball
(``models``) and decides by a search where those of trees leave it open (``search``).
"""

from .cells import column_eps
from .certificate import Certificate
from .classifier import MRBoostClassifier, RobustnessWarning
from .matching import attainable_accuracy

__all__ = [
    "Certificate",
    "MRBoostClassifier",
    "RobustnessWarning",
    "attainable_accuracy",
    "column_eps",
]
