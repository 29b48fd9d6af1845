"""A tiny checkpoint in Hugging Face layout, and the command line in processes of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

from tests.experiments.forks import run_each

REPOSITORY = Path(__file__).resolve().parents[2]
HIDDEN, LAYERS, HEADS, KV_HEADS, WIDE, CONTEXT = 32, 2, 4, 2, 48, 256
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_checkpoint(folder: Path) -> None:
    """Writes a random Llama of 256 bytes and two special tokens, with logits a unit apart."""
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    vocab = tokenizer.get_vocab_size()
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE})
    )
    config = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": WIDE,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(vocab), folder / "model.safetensors")


def _weights(vocab: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int, scale: float) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    head = HIDDEN // HEADS
    weights = {
        "model.embed_tokens.weight": matrix(vocab, HIDDEN, 1.0),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": matrix(vocab, HIDDEN, 0.2),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{prefix}.post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{prefix}.self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN, 0.2),
            f"{prefix}.self_attn.k_proj.weight": matrix(KV_HEADS * head, HIDDEN, 0.2),
            f"{prefix}.self_attn.v_proj.weight": matrix(KV_HEADS * head, HIDDEN, 0.2),
            f"{prefix}.self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN, 0.2),
            f"{prefix}.mlp.gate_proj.weight": matrix(WIDE, HIDDEN, 0.2),
            f"{prefix}.mlp.up_proj.weight": matrix(WIDE, HIDDEN, 0.2),
            f"{prefix}.mlp.down_proj.weight": matrix(HIDDEN, WIDE, 0.2),
        }
    return weights


@dataclasses.dataclass
class Cli:
    """The command line with a tiny target, in a folder of its own.

    Attributes:
      folder: Where it runs; `prompts.jsonl` and `tiny.py`, the configuration, are here.
      environment: Of its processes.
    """

    folder: Path
    environment: dict[str, str]

    def arguments(self, **fields: object) -> list[str]:
        """Returns the arguments for some fields; `verifier__budget` is `verifier.budget`."""
        flags = [f"--config.{name.replace('__', '.')}={value}" for name, value in fields.items()]
        return ["--config=tiny.py", *flags]

    def start(self, **fields: object) -> subprocess.Popen:
        """Starts a run."""
        return subprocess.Popen(
            [sys.executable, "-m", "experiments.decode", *self.arguments(**fields)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, **fields: object) -> tuple[int, str, str]:
        """Runs to the end and returns (exit status, stdout, stderr)."""
        process = self.start(**fields)
        stdout, stderr = process.communicate(timeout=300)
        return process.returncode, stdout, stderr

    def run_each(self, cases: list[list[str]]) -> list[tuple[int, str, str]]:
        """Runs several command lines that end early, in forks of one process that has imported."""
        return run_each(
            cases,
            program="decode",
            schema="config",
            folder=self.folder,
            environment=self.environment,
        )


_CONFIG = """
from experiments.config import default_config

def get_config():
    config = default_config()
    config.target = "model"
    config.prompts = "prompts.jsonl"
    config.num_draft_tokens = 4
    config.max_new_tokens = 24
    config.verifier.gate = 1.0
    return config
"""


@pytest.fixture(scope="session")
def cli(tmp_path_factory) -> Cli:
    """The command line; its processes share one compilation cache."""
    folder = tmp_path_factory.mktemp("cli")
    write_checkpoint(folder / "model")
    (folder / "tiny.py").write_text(_CONFIG)
    (folder / "prompts.jsonl").write_text('{"id": "a", "prompt": "abcabc"}\n')
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "JAX_PLATFORMS": "cpu",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiles twice as fast
        "COLUMNS": "110",
    }
    return Cli(folder, environment)
