"""Methods as values, and the parts that they are made of.

A method is a ``Recipe``: a frozen dataclass of parts. ``mrboost.boost`` trains any of them, by name
or as a value::

    import mrboost
    from mrboost import recipes

    print(recipes.get("trades"))                  # its parts; recipes.RECIPES holds all methods
    mrboost.boost("trades", "digits", epochs=3)

A new method is another one with some parts changed. This one boosts TRADES: each of five networks
starts from the last one, and the attack sees the ensemble so far::

    from dataclasses import replace

    boosted_trades = replace(
        recipes.TRADES,
        name="boosted-trades",
        sampler=recipes.Diverge(joint=True),
        init=recipes.PerInit(),
        rounds=5,
    )
    model = mrboost.boost(boosted_trades, "digits", epochs=3)

A batch goes through the parts in this order:

=============  ======================  =============================================================
part           file                    what it does
=============  ======================  =============================================================
``cutmix``     ``mrboost.data``        mixes images of the batch
``sampler``    ``samplers.py``,        perturbs them: whom to attack, and which loss to raise
               ``exponential.py``
``objective``  ``objectives.py``       gives the loss of each example on them
``scope``      ``objectives.py``       whose logits that loss sees: the learner's or the ensemble's
``awp``        ``awp.py``              perturbs the weights where the gradient is taken
``schedule``   ``optimisation.py``     the learning rate of the step of SGD
``init``       ``optimisation.py``     before a round: the weights that it starts from
=============  ======================  =============================================================

``methods.py`` holds the methods, ``config.py`` the configuration of a run: a recipe with data,
model and options. A part is a frozen dataclass with ``__call__``; docs/design.md shows how to write
one.
"""

from .awp import AWP
from .exponential import Exp
from .methods import (
    AT,
    AT2,
    AT_AWP,
    AT_MCE,
    AWP_MCE,
    DEEPER,
    GAIR,
    GAIR_MCE,
    MART,
    MART_MCE,
    MART_MCE_PERTURBED,
    MRBOOST,
    MRBOOST_STRONG,
    PINOT,
    RECIPES,
    ROBBOOST,
    SNAPSHOTS,
    STRONG,
    TRADES,
    TRADES_MCE,
    WIDER,
    Recipe,
    get,
    register,
)
from .objectives import Ind, Mart, Objective, OnPairs, OnPerturbed, Scope, Trades, Whole
from .optimisation import Init, OneCycle, PerInit, Piecewise, RndInit, Schedule
from .samplers import All, Diverge, Drawn, Geometry, Learner, Max, Past, Rnd, Sampler

__all__ = ["RECIPES", "Recipe", "get", "register"]
__all__ += ["AT", "AT2", "AT_AWP", "AT_MCE", "AWP_MCE", "DEEPER", "GAIR", "GAIR_MCE", "MART"]
__all__ += ["MART_MCE", "MART_MCE_PERTURBED", "MRBOOST", "MRBOOST_STRONG", "PINOT", "ROBBOOST"]
__all__ += ["SNAPSHOTS", "STRONG", "TRADES", "TRADES_MCE", "WIDER"]
__all__ += ["All", "Diverge", "Drawn", "Exp", "Geometry", "Learner", "Max", "Past", "Rnd"]
__all__ += ["Ind", "Mart", "Objective", "OnPairs", "OnPerturbed", "Scope", "Trades", "Whole"]
__all__ += ["AWP", "Init", "OneCycle", "PerInit", "Piecewise", "RndInit", "Sampler", "Schedule"]
