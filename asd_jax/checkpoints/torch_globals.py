"""What the pickle of a torch file may name, and the plain records that stand in for it here.

Nothing of torch is imported or called: a name that is not in `ALLOWED` cannot be read at all.

Format: torch/serialization.py, torch/_utils.py and torch/storage.py, version 2.13.
"""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np


@dataclasses.dataclass(frozen=True)
class Storage:
    """The bytes that tensors are views of: a member of the archive.

    Attributes:
      key: Its name below `data/`.
      num_bytes: Its size.
      dtype: Type of its elements, or None when the tensor says it.
    """

    key: str
    num_bytes: int
    dtype: np.dtype | None


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A view of a storage; `offset` and `strides` count elements of `dtype`, none is negative."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class Global:
    """What stands in for a Python object that the pickle names.

    Attributes:
      kind: "function", "storage" or "dtype".
      name: Its name in Python.
      dtype: Of a storage type or dtype.
    """

    kind: str
    name: str
    dtype: np.dtype | None = None


_STORAGES = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}
_DTYPES = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint64": np.uint64,
    "uint32": np.uint32,
    "uint16": np.uint16,
    "uint8": np.uint8,
    "bool": np.bool_,
}
_FUNCTIONS = (
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
)
# By full name in Python.
ALLOWED: dict[str, Global] = {name: Global("function", name) for name in _FUNCTIONS}
ALLOWED |= {
    f"torch.{name}": Global("storage", f"torch.{name}", np.dtype(dtype))
    for name, dtype in _STORAGES.items()
}
ALLOWED["torch.storage.UntypedStorage"] = Global("storage", "torch.storage.UntypedStorage")
ALLOWED |= {
    f"torch.{name}": Global("dtype", f"torch.{name}", np.dtype(dtype))
    for name, dtype in _DTYPES.items()
}
