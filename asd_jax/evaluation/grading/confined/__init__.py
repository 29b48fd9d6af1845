"""What runs inside the confined process; none of it is imported by the grader.

`run` is the program, `isolation` what the kernel enforces on it, `watch` what an audit hook adds.
"""
