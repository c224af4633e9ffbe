"""The paper's tables and figures as runnable studies, the paper's numbers beside ours:
``mrboost study NAME``.

``catalogue`` reads what the studies are and what the paper reports; ``plan`` says which trainings
and evaluations they consist of, ``run`` carries those out; ``page`` shows what was found.
"""

from .catalogue import SCALES, STUDIES, Row, Scale, Study, get, get_scale
from .page import listing, write_page
from .plan import Request, Training, choose, describe_plan
from .run import carry_out

__all__ = ["SCALES", "STUDIES", "Request", "Row", "Scale", "Study", "Training", "carry_out"]
__all__ += ["choose", "describe_plan", "get", "get_scale", "listing", "write_page"]
