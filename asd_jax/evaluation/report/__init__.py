"""One page that shows a study: ASD audited against strict speculative decoding.

`study` says what a study is made of and refuses what is not one, `page` puts the page together from
`summary`, the figures (`frontier`, `interval_bars`, `task_curves`), `tables` and the exception
`browser`. The page is one HTML file that asks for nothing else, online or on disk.
"""

from asd_jax.evaluation.report.fields import StudyError
from asd_jax.evaluation.report.page import render_report, write_report

__all__ = ["StudyError", "render_report", "write_report"]
