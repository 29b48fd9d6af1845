"""Which residual streams a drafter reads: one convention inside, the released ones converted.

Inside it is always the index of Hugging Face's `hidden_states`: 0 is the embedding and i the output
of the i-th layer, here before the final norm also for i = L. Drafter configs have two spellings:

- "layer_output": id l is the output of the 0-based layer l (DSpark's `target_layer_ids`; EAGLE-3
  checkpoints of SpecForge and SGLang).
- "layer_input": id l is what enters the 0-based layer l, which is the inside convention (the EAGLE
  repository, vLLM, speculators).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Convention = Literal["layer_output", "layer_input"]
_SHIFT = {"layer_output": 1, "layer_input": 0}


def hidden_state_indices(
    ids: Sequence[int], convention: Convention, num_layers: int, *, field: str = "feature_layers"
) -> tuple[int, ...]:
    """Converts the ids of a drafter config to indices of `hidden_states`.

    Args:
      ids: As the config has them, in its order.
      convention: What they mean.
      num_layers: L of the target.
      field: Name of the config field, for the message.

    Returns:
      Indices 0..L, in the same order.

    Raises:
      ValueError: An unknown convention, or an id that is no whole number or not in the target.
    """
    if convention not in _SHIFT:
        raise ValueError(f"convention: got {convention!r}, allowed is one of {', '.join(_SHIFT)}")
    shift = _SHIFT[convention]
    whole = [i for i in ids if isinstance(i, int) and not isinstance(i, bool)]
    if len(whole) != len(ids) or not all(0 <= i + shift <= num_layers and i >= 0 for i in whole):
        raise ValueError(
            f"{field}: got {list(ids)}, allowed are whole numbers 0..{num_layers - shift} with a "
            f"target of {num_layers} layers"
        )
    return tuple(i + shift for i in whole)


def eagle3_default(num_layers: int) -> tuple[int, ...]:
    """Returns the indices that EAGLE-3 drafters read where their config names none.

    Source: SafeAILab/EAGLE, `eagle/model/modeling_llama_kv.py`: a low, a middle and a high layer.

    Raises:
      ValueError: A target so small that the three would not ascend.
    """
    indices = (2, num_layers // 2, num_layers - 3)
    if not indices[0] < indices[1] < indices[2]:
        raise ValueError(
            f"feature_layers: a target of {num_layers} layers has no three ascending default "
            f"layers (got {list(indices)}); the drafter's config must name them"
        )
    return indices
