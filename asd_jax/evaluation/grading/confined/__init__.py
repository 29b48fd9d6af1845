"""What runs inside the confined process; none of it is imported by the grader.

`run` runs a program and its tests, `math_worker` compares formulas. `isolation` and `landlock` are
what the kernel enforces on them, `watch` is what an audit hook adds for programs.
"""
