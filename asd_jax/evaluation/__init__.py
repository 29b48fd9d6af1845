"""Running targets and drafters over prompts: reading, batching, timing, writing, adding up.

`prompts` reads requests, `plan` turns them into batches, `interleaved` decodes them under several
arms, `records` writes the answers, `summary` adds them up and `receipt` says what was run.
"""
