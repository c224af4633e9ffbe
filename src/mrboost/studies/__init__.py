"""The paper's tables and figures as runnable studies, the paper's numbers beside ours:
``mrboost study NAME``."""

from .declared import SCALES, STUDIES, Row, Scale, Study, get, get_scale
from .pages import compose, listing, plan
from .paper import Claim, report
from .planning import Request, Training
from .running import carry_out, choose

__all__ = [
    "SCALES",
    "STUDIES",
    "Claim",
    "Request",
    "Row",
    "Scale",
    "Study",
    "Training",
    "carry_out",
    "choose",
    "compose",
    "get",
    "get_scale",
    "listing",
    "plan",
    "report",
]
