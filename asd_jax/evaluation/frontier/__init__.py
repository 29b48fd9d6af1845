"""Speed against quality: settings of ASD under both value schemes, rival rules, and two anchors.

    strict, candidate = read_answers("anchors.jsonl", "strict"), read_answers("mars.jsonl", "mars")
    pairs = join(examples, strict, candidate)
    measures = {"gsm8k": measure(pairs, grades, is_graded=True)}
    point = make_point("mars", {"theta": 0.9}, measures, Bootstrap())

Nothing here runs a model. Speed is the tokens that a target forward yields, so it says nothing of
a machine; quality is the share of right answers. Both are told against strict decoding of the same
questions.
"""

from asd_jax.evaluation.frontier.answers import Answers, join, read_answers, read_grid_answers
from asd_jax.evaluation.frontier.points import Details, Point, make_point
from asd_jax.evaluation.frontier.render import UNITS, document, to_markdown
from asd_jax.evaluation.frontier.rivals import (
    RIVAL_VALUES,
    Rival,
    reason_left_out,
    rival_settings,
)
from asd_jax.evaluation.frontier.schemes import Contrast, Schemes, Worth, compare_schemes

__all__ = [
    "RIVAL_VALUES",
    "UNITS",
    "Answers",
    "Contrast",
    "Details",
    "Point",
    "Rival",
    "Schemes",
    "Worth",
    "compare_schemes",
    "document",
    "join",
    "make_point",
    "read_answers",
    "read_grid_answers",
    "reason_left_out",
    "rival_settings",
    "to_markdown",
]
