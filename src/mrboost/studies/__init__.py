"""The paper's tables and figures as runnable studies, the paper's numbers beside ours:
``mrboost study NAME``."""

from .catalogue import SCALES, STUDIES, Row, Scale, Study, get, get_scale
from .page import compose, listing
from .paper import Claim, PaperResults, paper_results
from .plan import Request, Training, choose, describe_plan
from .run import carry_out

__all__ = [
    "SCALES",
    "STUDIES",
    "Claim",
    "PaperResults",
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
