"""Telling right answers from wrong ones, without trusting the model that wrote them.

`boxed` and `numeric` read numbers, `latex` compares formulas in a worker process, `letter` reads
choices, `program` finds the code of an answer and `sandbox` runs it. `overlap` and `judge` are for
tasks that have no right answer.
"""
