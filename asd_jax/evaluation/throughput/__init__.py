"""Speed on fixed work by the B-C-B protocol: strict, candidate, strict, one right after the other.

    found = whole_measurements(map(parse_measurement, rows), ROLES)
    units = {unit: attempts[-1] for unit, attempts in found.items()}
    tasks, mean = measure_tasks({"gsm8k": units})
    document = make_document(tasks, mean, run=run, controls=controls, left_out={})
    by_task, gain = for_report(document)

Nothing here runs a model or reads a clock; `experiments.throughput` does. Quality is measured
elsewhere, on answers that end by themselves: no run ever serves both.
"""

from asd_jax.evaluation.throughput.clocks import Clock
from asd_jax.evaluation.throughput.document import (
    Steadied,
    first_figures,
    for_report,
    make_document,
)
from asd_jax.evaluation.throughput.measurements import (
    ROLES,
    Measured,
    Unit,
    is_steady,
    measurement_row,
    parse_measurement,
    whole_measurements,
)
from asd_jax.evaluation.throughput.render import to_markdown
from asd_jax.evaluation.throughput.result import Speed, TaskSpeed, measure_tasks

__all__ = [
    "ROLES",
    "Clock",
    "Measured",
    "Speed",
    "Steadied",
    "TaskSpeed",
    "Unit",
    "first_figures",
    "for_report",
    "is_steady",
    "make_document",
    "measure_tasks",
    "measurement_row",
    "parse_measurement",
    "to_markdown",
    "whole_measurements",
]
