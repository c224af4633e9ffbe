"""The paper's tables and figures as runnable studies, the paper's numbers beside ours:
``mrboost study NAME``.

``catalogue`` holds what the studies are and ``paper`` what the paper reports; ``plan`` which
trainings and evaluations they consist of, ``run`` carries those out; ``page`` and ``tables`` show
what was found.
"""

from .catalogue import SCALES, STUDIES, Row, Scale, Study, get, get_scale
from .page import compose, listing
from .paper import paper_results
from .plan import Request, Training, choose, describe_plan
from .run import carry_out

__all__ = [
    "SCALES",
    "STUDIES",
    "Request",
    "Row",
    "Scale",
    "Study",
    "Training",
    "carry_out",
    "choose",
    "compose",
    "describe_plan",
    "get",
    "get_scale",
    "listing",
    "paper_results",
]
