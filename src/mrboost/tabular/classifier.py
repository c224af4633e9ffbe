"""``MRBoostClassifier``, the scikit-learn estimator: checks its inputs, fits, predicts, certifies.

It maximises the minimum robust margin of the paper's equation (2),

    min over rows (x, y), false labels y' and |δ| <= eps of  score_y(x + δ) - score_y'(x + δ),

by Algorithm 1 ("hedge"), by linear programming ("lp"), or through a smooth loss ("smooth").
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from tqdm import tqdm

from mrboost.errors import InputError

from .cells import Floats, Ints, in_column_order, per_column
from .certificate import Certificate, certify, margins_by_column, predicted
from .cover import Table
from .fitting import Fitted, Options, fit_table, most_steps
from .matching import attainable_accuracy
from .models import Model, StumpModel

MAX_MATCHED = 3000  # points up to which fit counts the conflicts between classes
MAX_RATIO = 30  # of the ranges of two columns, beyond which one eps for both is doubted


class RobustnessWarning(UserWarning):
    """What was asked does not suit the table."""


class MRBoostClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Margin boosting on a table, with robustness that is proved.

    Every entry may be off by up to ``eps``, in all columns at once; the classifier is fitted so
    that its predictions stay right.

    Parameters
    ----------
    eps : float, or one per column: a sequence, or a mapping or pandas Series by column name
        In the units of the columns; 0 for a column that cannot change. ``column_eps(X, 0.05)`` is
        5 % of each column's range. One number for columns whose ranges differ more than thirtyfold
        draws a ``RobustnessWarning``.
    base : {"auto", "stump", "tree"}
        Stumps are certified exactly; trees can tell more apart, and are certified by a bound and a
        search. "auto" takes those with the greater robust accuracy on held-out rows: in three
        folds, or in one split of a table of more than 3,000 rows. That makes fit about three times
        as long as with trees. For "lp" and "hedge" it is "stump".
    max_depth : int
        Of trees.
    n_rounds : int, optional
        Number of trees (default 100, with "smooth" 40 for each pair of classes if that is more,
        fewer beyond ten classes), of rounds of "hedge" (1000), or of iterations of "smooth" on
        stumps (300).
    solver : {"auto", "smooth", "lp", "hedge"}
        "smooth" minimises the logistic loss of the worst case; "lp" solves the game exactly;
        "hedge" plays Algorithm 1 (stumps only). "auto" is "smooth", which generalises best.
    nu : "auto" or float in [0, 1]
        For "lp" and "hedge": the mean margin of this fraction of the points, the worst ones, is
        maximised; 0 is the margin of the single worst point. "auto" chooses by cross-validation
        on the training set (for "lp" with at most 16 thresholds per column); verbose=1 shows how
        far it is.
    alpha : float
        Strength of the L2 penalty of "smooth".
    max_thresholds : int
        Per column.
    random_state : int, RandomState or None
        For growing trees, and for the rows held out to choose ``base`` and ``nu``.
    verbose : int
        1 shows progress bars.

    Attributes
    ----------
    certificate_ : Certificate
        Of the training set.
    base_ : {"stump", "tree"}
        The base that was used.
    base_scores_ : dict or None
        The robust accuracy of each base on held-out rows, with "auto".
    feature_importances_ : array (n_features,)
        Each column's share of the variance of the scores on the training set: that of its stumps,
        or the part of the trees' that its splits explain.
    nu_ : float or None
        The nu that was used.
    classes_ : array of the class labels
    eps_ : array (n_features,)
    ranges_ : array (n_features,)
        Maximum - minimum of each column of the training set.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MRBoostClassifier(eps=0.1).fit(X, y)
    >>> bool(model.robust_score(X, y) > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "eps": "no_validation",  # see _radius
        "base": [StrOptions({"auto", "stump", "tree"})],
        "max_depth": [Interval(Integral, 1, None, closed="left")],
        "n_rounds": [Interval(Integral, 1, None, closed="left"), None],
        "solver": [StrOptions({"auto", "smooth", "lp", "hedge"})],
        "nu": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
        "alpha": [Interval(Real, 0, None, closed="neither")],
        "max_thresholds": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        eps: float | npt.ArrayLike = 0.1,
        *,
        base: str = "auto",
        max_depth: int = 3,
        n_rounds: int | None = None,
        solver: str = "auto",
        nu: float | str = "auto",
        alpha: float = 5e-3,
        max_thresholds: int = 256,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.eps = eps
        self.base = base
        self.max_depth = max_depth
        self.n_rounds = n_rounds
        self.solver = solver
        self.nu = nu
        self.alpha = alpha
        self.max_thresholds = max_thresholds
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Fit to a table.

        Args:
            X: numbers, (n_samples, n_features).
            y: labels, (n_samples,).
            sample_weight: how often each row counts.
        """
        X, y = self._table(X, y, reset=True)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        present = np.unique(y[weight > 0])
        if len(present) < 2:
            raise InputError(f"the rows of positive weight have one class, {present}: give two")
        options = self._options()
        self.ranges_ = np.ptp(X, axis=0)
        self.eps_ = self._radius(self.eps)
        table = Table.merged(X, codes, weight, self.eps_, len(self.classes_))
        steps = most_steps(options, len(self.classes_))
        with tqdm(total=steps, desc="fit", disable=None if self.verbose else True) as bar:
            fitted = fit_table(table, options, bar.update)
        self.model_ = fitted.model
        self.base_ = "stump" if isinstance(fitted.model, StumpModel) else "tree"
        self.base_scores_ = fitted.base_scores
        self.nu_ = fitted.nu
        part = fitted.model.importances(table.X, table.weight)
        self.feature_importances_ = part / part.sum() if part.any() else part
        self.certificate_ = self._training_certificate(X, codes, fitted)
        return self

    def decision_function(self, X: Any) -> Floats:
        """Two classes: the score of the second one. More: each class's least
        score against the others."""
        check_is_fitted(self)
        return self._decision(self.model_, self._table(X))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        return self._labels(self.decision_function(X))

    def predict_proba(self, X: Any) -> Floats:
        """The logistic function of the scores. These are fitted to the worst case, so the
        probabilities are less extreme than the frequencies without an adversary."""
        return _probabilities(self.decision_function(X))

    def staged_decision_function(self, X: Any) -> Iterator[Floats]:
        """The decision function after each round of "hedge", each tree, or each column (in order of
        how far it can move a score)."""
        check_is_fitted(self)
        X = self._table(X)
        for model in self.model_.stages():
            yield self._decision(model, X)

    def staged_predict(self, X: Any) -> Iterator[npt.NDArray[Any]]:
        return map(self._labels, self.staged_decision_function(X))

    def staged_predict_proba(self, X: Any) -> Iterator[Floats]:
        return map(_probabilities, self.staged_decision_function(X))

    def certify(self, X: Any, y: Any, eps: float | npt.ArrayLike | None = None) -> Certificate:
        """What is proved about each point: margin, radius, and a witness where it is not robust.

        Args:
            X: points, (n_samples, n_features).
            y: their labels.
            eps: the radius of the ball, as in the constructor; by default that of the fit.
        """
        X, codes, ball = self._points(X, y, eps)
        return certify(self.model_, X, codes, ball, progress=bool(self.verbose))

    def robust_score(
        self,
        X: Any,
        y: Any,
        eps: float | npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> float:
        """The share of the points that are proved to be classified correctly in their whole balls;
        arguments as in ``certify``."""
        X, codes, ball = self._points(X, y, eps)
        show = bool(self.verbose)
        robust = certify(self.model_, X, codes, ball, radius=False, progress=show).robust
        weight = _check_sample_weight(sample_weight, robust, ensure_non_negative=True)
        if not weight.sum() > 0:
            raise InputError("sample_weight is zero for all points: give some of them weight")
        return float(np.average(robust, weights=weight))

    def plot_certificate(
        self,
        X: Any,
        y: Any,
        row: int = 0,
        eps: float | npt.ArrayLike | None = None,
        *,
        feature_names: Sequence[str] | None = None,
    ) -> Any:
        """Draw the certificate of one row: how the margin falls as one column after another may be
        off, those that lower it most first, and the witness's values of them.

        Args:
            X: points, (n_samples, n_features).
            y: their labels.
            row: which of them to draw.
            eps: as in ``certify``.
            feature_names: of the columns; by default those of the DataFrame that was fitted.

        Returns:
            A matplotlib figure; ``.savefig("row.svg")`` writes it.
        """
        from .plot import certificate_figure  # matplotlib takes a second to load

        X, codes, ball = self._points(X, y, eps)
        if not -len(X) <= row < len(X):
            raise InputError(f"row is {row}, but X has {len(X)} rows, counted from 0")
        proof = certify(self.model_, X[[row]], codes[[row]], ball, radius=False)
        order, margins = margins_by_column(self.model_, X[row], codes[row], ball)
        names = self._column_names() if feature_names is None else feature_names
        label = str(self.classes_[codes[row]])
        return certificate_figure(X[row], proof, order, margins, names, label)

    # Inputs

    def _options(self) -> Options:
        """The parameters, checked."""
        self._validate_params()
        if self.base == "tree" and self.solver == "hedge":
            raise InputError("solver='hedge' needs base='stump': use 'smooth' or 'lp' with trees")
        solver = "smooth" if self.solver == "auto" else self.solver
        base: str | None = self.base
        if base == "auto":
            base = None if solver == "smooth" else "stump"
        return Options(
            base=base,
            solver=solver,
            depth=int(self.max_depth),
            rounds=None if self.n_rounds is None else int(self.n_rounds),
            nu=None if solver == "smooth" or isinstance(self.nu, str) else float(self.nu),
            alpha=float(self.alpha),
            max_thresholds=int(self.max_thresholds),
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )

    def _points(self, X: Any, y: Any, eps: Any) -> tuple[Floats, Ints, Floats]:
        """Points, their classes counted from 0, and the radius of the ball around them."""
        check_is_fitted(self)
        X, y = self._table(X, y)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            known = self.classes_[:20]
            raise InputError(f"y holds labels that fit has not seen: {unknown[:5]}; known: {known}")
        codes = np.searchsorted(self.classes_, y)
        return X, codes, self.eps_ if eps is None else self._radius(eps)

    def _radius(self, eps: Any) -> Floats:
        """``eps`` for each column."""
        if isinstance(eps, Mapping) or hasattr(eps, "reindex"):  # a pandas Series
            eps = in_column_order(eps, list(getattr(self, "feature_names_in_", [])))
        radius = per_column("eps", eps, self.n_features_in_)
        if np.ndim(eps) == 0 and radius[0] > 0:
            self._warn_of_scales(radius[0])
        return radius

    def _warn_of_scales(self, eps: float) -> None:
        """Warn if one ``eps`` for all columns can hardly be meant."""
        ranges = self.ranges_
        varied = np.flatnonzero(ranges)
        if not len(varied) or ranges.max() <= MAX_RATIO * ranges[varied].min():
            return
        names = self._column_names()
        wide, narrow = ranges.argmax(), varied[ranges[varied].argmin()]
        message = (
            f"eps={eps:g} holds for every column, but {names[wide]} ranges over "
            f"{ranges[wide]:.4g} and {names[narrow]} over {ranges[narrow]:.4g}: "
            "use eps=column_eps(X, 0.05), or give one per column"
        )
        warnings.warn(message, RobustnessWarning, stacklevel=4)

    def _column_names(self) -> list[str]:
        unnamed = [f"column {j}" for j in range(self.n_features_in_)]
        return [str(name) for name in getattr(self, "feature_names_in_", unnamed)]

    def _table(self, X: Any, y: Any = "no_validation", reset: bool = False) -> Any:
        remedy = "encode it, e.g. by OneHotEncoder (with eps=0 if nobody can change it)"
        kinds: Any = getattr(X, "dtypes", None)
        for name, kind in kinds.items() if hasattr(kinds, "items") else ():
            if str(kind) == "category":
                raise InputError(f"column {str(name)!r} is categorical: {remedy}")
        try:
            return validate_data(self, X, y, dtype=np.float64, reset=reset)
        except ValueError as error:
            if "could not convert string" in str(error):
                raise InputError(f"X holds text ({error}): {remedy}") from None
            raise

    # Outputs

    def _decision(self, model: Model, X: Floats) -> Floats:
        scores = model.scores(X)
        return -scores[:, 0] if len(self.classes_) == 2 else model.pairs.wins(scores)

    def _labels(self, decision: Floats) -> npt.NDArray[Any]:
        codes = (decision > 0).astype(np.intp) if decision.ndim == 1 else decision.argmax(axis=1)
        return np.asarray(self.classes_[codes])

    def _training_certificate(self, X: Floats, codes: Ints, fitted: Fitted) -> Certificate:
        attainable = attainable_accuracy(X, codes, self.eps_) if len(X) <= MAX_MATCHED else None
        found = certify(fitted.model, X, codes, self.eps_, radius=False, witness=False, limit=0)
        messages = []
        if fitted.is_tie:
            wider = "nu='auto'" if fitted.nu == 0 else "a larger nu"
            messages.append(
                f"the game at nu={fitted.nu:g} is worth nothing, so nothing was learned: "
                f"use {wider} or solver='smooth'"
            )
        elif len(np.unique(predicted(fitted.model, X))) == 1:
            remedy = "use a smaller eps or alpha, or base='tree'"
            messages.append(f"the fit predicts one class everywhere: {remedy}")
        if attainable is not None and attainable < 0.9:
            messages.append(
                "points of different classes lie within 2 eps of each other, so no classifier can "
                f"have more than {attainable:.1%} of them right robustly: use a smaller eps"
            )
        if messages:
            warnings.warn("; ".join(messages), RobustnessWarning, stacklevel=3)
        return replace(found, value=fitted.value, attainable=attainable)


def _probabilities(decision: Floats) -> Floats:
    if decision.ndim == 1:
        second = expit(decision)
        return np.stack([1 - second, second], axis=1)
    return np.asarray(softmax(decision, axis=1))
