"""Run folders: what they hold, and what is done with finished ones.

``folder``        ``Run``: reading one, writing one so that a crash loses at most an epoch
``schema``        what each of its JSON files must hold
``identity``      when two configurations are the same training
``given``         a folder for the evaluations of a model that was trained elsewhere
``evaluate_run``  evaluations of a run, kept in its results.json, each merged with the others
``card``          a figure with all that is needed to publish it, and to measure it again
``verify``        measures a part of a card again
``join``          networks that were trained apart as one ensemble
``reweight``      weights for the members of an ensemble
``compare``       the evaluations of several runs and cards side by side
``export``        a classifier as ONNX or a program of torch.export, with a page about it
``predict``       labels of image files, and whether an attack changes them
"""

from .folder import Run, check_kind, load, slug

__all__ = ["Run", "check_kind", "load", "slug"]
