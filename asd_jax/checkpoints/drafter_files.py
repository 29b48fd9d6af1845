"""Opens a drafter: its config, and its weights in any form that drafters are released in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from asd_jax.checkpoints.load_hf import find_weights, open_files, read_config, read_safetensors
from asd_jax.checkpoints.load_torch import read_torch_header
from asd_jax.checkpoints.source import CheckpointError, CheckpointSource, TensorSource, some


@dataclasses.dataclass(frozen=True)
class WeightsForm:
    """A form that a drafter's weights come in.

    Attributes:
      single: Their name in one file.
      index_name: That of the index of several, if they are ever divided.
      read_header: Returns the tensors of one file, and the length of its header in bytes.
    """

    single: str
    index_name: str | None
    read_header: Callable[[Path], tuple[dict[str, TensorSource], int]]


# In order of preference. Safetensors come first: they are of one version of a format, and hold
# nothing that has to be refused.
WEIGHTS_FORMS = (
    WeightsForm("model.safetensors", "model.safetensors.index.json", read_safetensors),
    WeightsForm("medusa_lm_head.safetensors", None, read_safetensors),
    WeightsForm("pytorch_model.bin", "pytorch_model.bin.index.json", read_torch_header),
    WeightsForm("medusa_lm_head.pt", None, read_torch_header),
)
_READERS = {".safetensors": read_safetensors, ".bin": read_torch_header, ".pt": read_torch_header}


def open_drafter(path: str | Path) -> CheckpointSource:
    """Opens a drafter without reading its tensors.

    Args:
      path: A directory with `config.json` and weights in one of `WEIGHTS_FORMS`, of which the first
        that is there is taken; or one file of weights (`.safetensors`, `.bin` or `.pt`, under any
        name) with `config.json` beside it.

    Returns:
      The opened checkpoint, its path the directory. The config is as it is in the file, except for
      RoPE (see `open_hf`): that of Medusa has hardly a field, which is for its reader to judge.

    Raises:
      CheckpointError: The path, `config.json` or the weights are missing (all names that were
        looked for are given), or a file cannot be read (see `open_hf` and `read_torch_file`).
    """
    path = Path(path)
    if path.is_file():
        if path.suffix not in _READERS:
            raise CheckpointError(
                f"{path}: not weights of a drafter by its name, allowed: {', '.join(_READERS)}"
            )
        return open_files(path.parent, read_config(path.parent), [path], _READERS[path.suffix])
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or directory, expected a drafter")
    config = read_config(path)
    for form in WEIGHTS_FORMS:
        found = find_weights(path, form.single, form.index_name)
        if found is not None:
            files, indexed = found
            index_name = form.index_name if indexed else None
            return open_files(path, config, files, form.read_header, index_name)
    names = [name for form in WEIGHTS_FORMS for name in (form.single, form.index_name) if name]
    has = some((entry.name for entry in path.iterdir()), 5)
    raise CheckpointError(
        f"{path}: no weights of a drafter; allowed: {', '.join(names)}; has: {has}"
    )
