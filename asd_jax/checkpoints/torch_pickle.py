"""Reads the pickle inside a torch file, which is a program, without being able to run anything.

This is an interpreter of its own for the pickle operations that a table of tensors needs. It calls
no function by name: the few globals that such a file asks for stand for plain records here, every
other is refused, as is every other operation. `pickle.Unpickler` with a restricted `find_class`
would still run whatever hashes, compares or allocates while it builds objects: a key of nested
tuples takes for ever to hash, one memo index of four bytes allocates gigabytes. Here time and
memory are linear in the length of the pickle.

Format: CPython's Lib/pickletools.py; torch/serialization.py and torch/_utils.py, version 2.13.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from asd_jax.checkpoints.source import CheckpointError
from asd_jax.checkpoints.torch_globals import ALLOWED, Global, Storage, StoredTensor

_MAX_DIMS = 64  # numpy's own limit
_MAX_KEY = 1 << 31
_MAX_NAME = 200


def read_pickle(data: bytes, where: str) -> Any:
    """Returns what a torch file's pickle describes.

    Args:
      data: The whole pickle.
      where: The file and member, for messages.

    Returns:
      A `StoredTensor`, None, bool, int, float or str, or a tuple, list or dict of these; keys are
      str or int. A list or dict may contain itself. What `OrderedDict.__setstate__` would set, such
      as a module's `_metadata`, is left out.

    Raises:
      CheckpointError: It asks for a Python object that tensors do not need (which is named), uses
        an operation that they do not need, describes an impossible tensor, or is corrupt.
    """
    machine = _Machine(data, where)
    try:
        return machine.run()
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, struct.error) as error:
        raise CheckpointError(
            f"{where}: corrupt pickle at byte {machine.at}: {type(error).__name__}: {error}"
        ) from error


class _Machine:
    """The pickle stack machine. `at` is the operation in progress."""

    def __init__(self, data: bytes, where: str) -> None:
        self.at = 0
        self._data = data
        self._where = where
        self._next = 0
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks beneath each open mark
        # A dict, as an index may be any number of four bytes.
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            self.at = self._next
            code = self._take(1)
            if code == b".":
                break
            if code not in _OPERATIONS:
                self._refuse(f"uses the pickle operation {code!r}, which tables of tensors do not")
            _OPERATIONS[code](self)
        if len(self._stack) != 1 or self._below:
            self._refuse(f"ends with {len(self._stack)} values on the stack, expected 1")
        if self._next != len(self._data):
            self._refuse(f"has {len(self._data) - self._next} bytes behind its end")
        return self._stack[0]

    def _refuse(self, what: str) -> NoReturn:
        raise CheckpointError(f"{self._where}: refused: the file {what} (at byte {self.at})")

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self._next:
            self._refuse(f"is cut off: {count} more bytes are needed")
        self._next += count
        return self._data[self._next - count : self._next]

    def _number(self, form: str) -> Any:
        return struct.unpack("<" + form, self._take(struct.calcsize(form)))[0]

    def _line(self) -> str:
        end = self._data.find(b"\n", self._next)
        if end < 0:
            self._refuse("is cut off within a name")
        return self._take(end + 1 - self._next)[:-1].decode()

    def _text(self, form: str) -> None:
        self._stack.append(self._take(self._number(form)).decode())

    def _long(self) -> None:
        self._stack.append(int.from_bytes(self._take(self._number("B")), "little", signed=True))

    def _frame(self) -> None:
        size = self._number("Q")
        if size > len(self._data) - self._next:
            self._refuse(f"is cut off: it announces {size} more bytes")

    def _protocol(self) -> None:
        version = self._number("B")
        if not 2 <= version <= 5:
            self._refuse(f"has pickle protocol {version}, allowed: 2 to 5")

    def _mark(self) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _pop_mark(self) -> list[Any]:
        items = self._stack
        self._stack = self._below.pop()
        return items

    def _tuple(self, count: int) -> None:
        if count > len(self._stack):
            raise IndexError("pop from an empty stack")
        at = len(self._stack) - count
        self._stack[at:] = [tuple(self._stack[at:])]

    def _marked_tuple(self) -> None:
        items = self._pop_mark()
        self._stack.append(tuple(items))

    def _set_items(self, items: list[Any]) -> None:
        table = self._stack[-1]
        if type(table) is not dict or len(items) % 2:
            self._refuse(f"sets items of a {_kind(table)}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Hashing nested tuples takes exponential time, and integers can be made to collide.
            if type(key) is not str and not (type(key) is int and abs(key) < _MAX_KEY):
                self._refuse(
                    f"has a dict key of type {_kind(key)}, allowed: str, or int below {_MAX_KEY}"
                )
            table[key] = value

    def _append(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            self._refuse(f"appends to a {_kind(self._stack[-1])}")
        self._stack[-1].extend(items)

    def _pop(self, count: int) -> list[Any]:
        items = self._stack[-count:]
        if len(items) < count:
            raise IndexError("pop from an empty stack")
        del self._stack[-count:]
        return items

    def _global(self) -> None:
        self._find(self._line(), self._line())

    def _stack_global(self) -> None:
        module, name = self._pop(2)
        if type(module) is not str or type(name) is not str:
            self._refuse(f"asks for a global named by {_kind(module)} and {_kind(name)}")
        self._find(module, name)

    def _instance(self) -> None:
        self._global()
        self._refuse(f"makes an instance of {self._stack[-1].name}")

    def _find(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        # The parts are compared, not only their sum: "torch" + "storage.X" is an attribute chain.
        known = ALLOWED.get(full)
        if known is None or "." in name:
            shown = full if full.isprintable() else repr(full)
            self._refuse(
                f"asks for {shown[:_MAX_NAME]}; allowed: dicts of tensors and parameters "
                "of floats, integers and booleans"
            )
        self._stack.append(known)

    def _build(self) -> None:
        target, state = self._pop(2)
        if type(target) is not dict or type(state) is not dict:
            self._refuse(f"sets the state of a {_kind(target)}")
        self._stack.append(target)

    def _reduce(self) -> None:
        function, args = self._pop(2)
        if not isinstance(function, Global) or function.kind != "function":
            self._refuse(f"calls a {_kind(function)}")
        if type(args) is not tuple or not 0 <= len(args) <= 8:
            self._refuse(f"calls {function.name} with bad arguments")
        self._stack.append(self._call(function.name.rsplit(".", 1)[-1], args))

    def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        if name == "OrderedDict":
            if args:
                self._refuse("calls OrderedDict with arguments, expected none")
            return {}
        if name == "_rebuild_parameter":
            if len(args) != 3 or not isinstance(args[0], StoredTensor):
                self._refuse("calls _rebuild_parameter with bad arguments")
            return args[0]
        has_dtype = name == "_rebuild_tensor_v3"
        if len(args) not in (6 + has_dtype, 7 + has_dtype):
            self._refuse(f"calls {name} with {len(args)} arguments")
        # The two in between are for training: whether gradients are kept, and hooks.
        storage, offset, shape, strides, _, _, *rest = args
        if not isinstance(storage, Storage):
            self._refuse(f"calls {name} on a {_kind(storage)}, expected a storage")
        dtype = storage.dtype
        if has_dtype:
            if not isinstance(rest[0], Global) or rest[0].kind != "dtype":
                self._refuse(f"calls {name} with a {_kind(rest[0])}, expected a dtype")
            dtype = rest[0].dtype
        self._check_metadata(rest[has_dtype:])
        return self._view(storage, offset, shape, strides, dtype)

    def _check_metadata(self, rest: list[Any]) -> None:
        """Refuses tensors that are stored negated or conjugated: nothing here would undo that."""
        metadata = rest[0] if rest else None
        if metadata is None:
            return
        if type(metadata) is not dict or set(metadata) - {"neg", "conj"}:
            self._refuse("has a tensor with metadata other than the flags neg and conj")
        if any(flag is not False for flag in metadata.values()):
            self._refuse("has a tensor that is stored negated or conjugated")

    def _view(
        self, storage: Storage, offset: Any, shape: Any, strides: Any, dtype: np.dtype | None
    ) -> StoredTensor:
        if dtype is None:
            self._refuse("has a tensor without a dtype")
        if (
            type(shape) is not tuple
            or type(strides) is not tuple
            or len(shape) != len(strides)
            or len(shape) > _MAX_DIMS
            or any(type(n) is not int or n < 0 or n >= 1 << 63 for n in (offset, *shape, *strides))
        ):
            self._refuse("has a tensor of bad shape, strides or offset")
        last = offset + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        if 0 not in shape and (last + 1) * dtype.itemsize > storage.num_bytes:
            self._refuse(
                f"has a tensor of {dtype.name} {list(shape)} that ends at byte "
                f"{(last + 1) * dtype.itemsize} of storage {storage.key!r} of {storage.num_bytes}"
            )
        return StoredTensor(storage, offset, shape, strides, dtype)

    def _persistent(self) -> None:
        (args,) = self._pop(1)
        if type(args) is not tuple or len(args) != 5:
            self._refuse(f"refers to a {_kind(args)} outside of the pickle")
        tag, kind, key, location, count = args
        if (
            type(tag) is not str
            or tag != "storage"
            or not isinstance(kind, Global)
            or kind.kind != "storage"
            or type(key) is not str
            or len(key) > _MAX_NAME
            or type(location) is not str
            or type(count) is not int
            or not 0 <= count < 1 << 63
        ):
            self._refuse("refers to a storage in a way that torch does not")
        itemsize = kind.dtype.itemsize if kind.dtype is not None else 1
        self._stack.append(Storage(key, count * itemsize, kind.dtype))


def _kind(value: Any) -> str:
    return value.name if isinstance(value, Global) else type(value).__name__


def _push(make: Callable[[], Any]) -> Callable[[_Machine], None]:
    return lambda m: m._stack.append(make())


_OPERATIONS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine._protocol,
    b"\x95": _Machine._frame,
    b"(": _Machine._mark,
    b"N": _push(lambda: None),
    b"\x88": _push(lambda: True),
    b"\x89": _push(lambda: False),
    b"}": _push(dict),
    b"]": _push(list),
    b")": _push(tuple),
    b"J": lambda m: m._stack.append(m._number("i")),
    b"K": lambda m: m._stack.append(m._number("B")),
    b"M": lambda m: m._stack.append(m._number("H")),
    b"\x8a": _Machine._long,
    b"G": lambda m: m._stack.append(struct.unpack(">d", m._take(8))[0]),
    b"X": lambda m: m._text("I"),
    b"\x8c": lambda m: m._text("B"),
    b"\x8d": lambda m: m._text("Q"),
    b"\x85": lambda m: m._tuple(1),
    b"\x86": lambda m: m._tuple(2),
    b"\x87": lambda m: m._tuple(3),
    b"t": _Machine._marked_tuple,
    b"s": lambda m: m._set_items(m._pop(2)),
    b"u": lambda m: m._set_items(m._pop_mark()),
    b"a": lambda m: m._append(m._pop(1)),
    b"e": lambda m: m._append(m._pop_mark()),
    b"q": lambda m: m._memo.__setitem__(m._number("B"), m._stack[-1]),
    b"r": lambda m: m._memo.__setitem__(m._number("I"), m._stack[-1]),
    b"\x94": lambda m: m._memo.__setitem__(len(m._memo), m._stack[-1]),
    b"h": lambda m: m._stack.append(m._memo[m._number("B")]),
    b"j": lambda m: m._stack.append(m._memo[m._number("I")]),
    b"c": _Machine._global,
    b"\x93": _Machine._stack_global,
    b"i": _Machine._instance,
    b"R": _Machine._reduce,
    b"b": _Machine._build,
    b"Q": _Machine._persistent,
}
