"""Training, from the rounds of boosting down to one step.

``boost.boost``   checks the options (``recipes.config.resolve``), opens the run folder, and trains
                  round after round: a new learner, ``fit``, then it is frozen and appended; the
                  first may come from another run, or start from a file of weights
``fit.fit``       one round: epochs over the images; after each, the held-out images are judged, a
                  line of metrics is written and everything needed to go on is saved
``step.Step``     one batch: the recipe's sampler perturbs it, the objective gives a loss for each
                  image, SGD follows their mean; parts that do not fit are refused before training
``state``         what a round is made of between two epochs (``FitState``), which epoch is the best
``loggers``       two functions for ``boost(on_epoch=…)``, which is told of each epoch
``ema``           the average of the weights that may be kept in place of the latest
``soup``          the mean of the weights of a run's networks, as one network

A recipe needs none of this to change: a sampler or an objective of one's own is a part of the
recipe, and the loop calls it.

Example:
    >>> import mrboost
    >>> model = mrboost.boost("at-mce", "digits", epochs=1, device="cpu")
    >>> len(model)
    1
"""
