"""What ASD does to answers: both arms' answers to the same examples, compared task by task.

    pairs = read_pairs("gsm8k.jsonl", read_examples("examples/gsm8k.jsonl", "gsm8k"))
    with GradeCache("gsm8k.grades.jsonl") as cache:
        grades = paired_grades(pairs, grade_steps(pairs, TASKS["gsm8k"], cache))
    comparison = compare(pairs, grades, TASKS["gsm8k"], tokenizer.decode)
    study = make_study({"gsm8k": comparison}, pairs.run)
    write_study("study.json", study)
    print(to_markdown(study))

Nothing here runs a model. Graded tasks are compared by right answers; for the others there is only
the likeness to a reference, which is not quality.
"""

from asd_jax.evaluation.audit.answers import ArmAnswer, ExceptionEntry, parse_answer
from asd_jax.evaluation.audit.compare import Comparison, compare
from asd_jax.evaluation.audit.fields import AuditError
from asd_jax.evaluation.audit.grades import (
    GradeCache,
    GradeStep,
    PairedGrade,
    grade_steps,
    paired_grades,
)
from asd_jax.evaluation.audit.pairs import Pair, Pairs, read_pairs
from asd_jax.evaluation.audit.pieces import Mark, Piece, cut
from asd_jax.evaluation.audit.render import to_markdown
from asd_jax.evaluation.audit.study import Mean, Study, make_study, mean_over_tasks, write_study
from asd_jax.evaluation.audit.worst import HarmedAnswer

__all__ = [
    "ArmAnswer",
    "AuditError",
    "Comparison",
    "ExceptionEntry",
    "GradeCache",
    "GradeStep",
    "HarmedAnswer",
    "Mark",
    "Mean",
    "Pair",
    "PairedGrade",
    "Pairs",
    "Piece",
    "Study",
    "compare",
    "cut",
    "grade_steps",
    "make_study",
    "mean_over_tasks",
    "paired_grades",
    "parse_answer",
    "read_pairs",
    "to_markdown",
    "write_study",
]
