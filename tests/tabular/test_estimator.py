"""scikit-learn's conventions, and what users can get wrong."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from mrboost.tabular import MRBoostClassifier, RobustnessWarning, column_eps

QUICK = [
    MRBoostClassifier(n_rounds=50),
    MRBoostClassifier(solver="hedge", n_rounds=30, nu=0.3),
    MRBoostClassifier(solver="lp", nu=0.3),
    MRBoostClassifier(base="tree", n_rounds=5),
]


# Several checks fit random labels, and there the advice that eps is too large is right.
@pytest.mark.filterwarnings("ignore::mrboost.tabular.RobustnessWarning")
@parametrize_with_checks(QUICK)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)
