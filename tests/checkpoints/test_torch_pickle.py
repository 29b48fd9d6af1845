"""Pickles that run commands, bombs and nonsense: all refused by name, and nothing is run."""

import pickle
import struct
import subprocess
import sys
import time
import tracemalloc

import pytest

from asd_jax.checkpoints.load_torch import read_torch_file
from asd_jax.checkpoints.source import CheckpointError
from asd_jax.checkpoints.torch_pickle import read_pickle
from tests.checkpoints.torch_archives import (
    DICT,
    call,
    name,
    number,
    numbers,
    row,
    storage,
    table,
    tensor,
    text,
    write,
)


def run(program):
    return read_pickle(b"\x80\x02" + program + b".", "file")


def refused(program, match):
    with pytest.raises(CheckpointError, match=match):
        run(program)


class Reduced:
    def __init__(self, *reduce):
        self.reduce = reduce

    def __reduce__(self):
        return self.reduce


def made(command):
    """The attacks that `pickle.loads` falls for, by the global that the refusal must name."""
    python = f"open({command!r}, 'w').close()"
    getattr_ = name("builtins", "getattr")
    module = call(name("importlib", "import_module"), text("posix"))
    shell = text(f"touch {command}")
    system = call(name("os", "system"), shell)
    eval_ = call(name("builtins", "eval"), text(python))
    exec_ = call(name("builtins", "exec"), text(python))
    popen = call(name("os", "popen"), shell)
    opened = call(name("builtins", "open"), text(command), text("w"))
    chain = call(call(getattr_, module, text("system")), shell)
    partial = call(call(name("functools", "partial"), name("posix", "system"), shell))
    method = call(call(name("operator", "methodcaller"), text("system"), shell), module)
    instance = b"(" + shell + b"iposix\nsystem\n"
    old = b"(" + name("posix", "system") + shell + b"o"
    mapped = row(call(name("builtins", "map"), name("os", "system"), b"]" + shell + b"a"))
    tuple_ = name("builtins", "tuple")
    stacked = text("posix") + text("system") + b"\x93" + row(shell) + b"R"
    dotted = text("collections") + text("OrderedDict.__init__.__class__") + b"\x93"
    runpy = call(name("timeit", "timeit"), text("0"), text(python), name("time", "time"), number(1))
    return {
        "os.system": system,
        "builtins.eval": eval_,
        "builtins.exec": exec_,
        "os.popen": popen,
        "builtins.open": opened,
        "builtins.getattr": chain,
        "functools.partial": partial,
        "operator.methodcaller": method,
        "posix.system": instance,
        "posix.system ": old,
        "posix.system  ": stacked,
        "builtins.tuple": tuple_ + mapped + b"\x81",
        "builtins.tuple ": tuple_ + mapped + b"}\x92",
        "copyreg.__newobj_ex__": call(name("copyreg", "__newobj_ex__"), tuple_, mapped, b"}"),
        "timeit.timeit": runpy,
        "collections.OrderedDict.__init__.__class__": dotted + b"0" + system,
        # In every place that a value can be.
        "os.system key": b"}" + system + number(1) + b"s",
        "os.system storage": row(text("storage"), system, text("0"), text("cpu"), number(4)) + b"Q",
        "os.system hooks": tensor(storage())[: -len(b"\x89" + DICT + b"tR")]
        + system
        + DICT
        + b"tR",
        "os.system argument": call(name("collections", "OrderedDict"), system),
        "os.system metadata": DICT + table({"_metadata": system}) + b"b",
        "os.system list": b"]" + system + b"a",
        "os.system entry": table({"model": table({"x": system, "w": tensor(storage())})}),
    }


KEYS = list(made("marker"))


@pytest.mark.parametrize("key", KEYS)
def test_commands_are_refused_by_name_and_not_run(tmp_path, key):
    marker = tmp_path / "marker"
    path = write(tmp_path / "m.bin", made(str(marker))[key])
    with pytest.raises(CheckpointError) as error:
        read_torch_file(path)
    assert f"refused: the file asks for {key.split()[0]};" in str(error.value)
    assert not marker.exists()


UNPICKLER = """
import pathlib, pickle, sys
class Loose(pickle.Unpickler):
    def persistent_load(self, args):
        return args
    def find_class(self, module, name):
        return dict if module.startswith("torch") else super().find_class(module, name)
for path in pathlib.Path(sys.argv[1]).glob("*.pkl"):
    try:
        Loose(path.open("rb")).load()
    except Exception:
        pass
"""


def test_the_commands_are_real(tmp_path):
    """Otherwise the test above would hold for a reader that runs everything."""
    markers = {key: tmp_path / f"{at}.marker" for at, key in enumerate(KEYS)}
    for key, marker in markers.items():
        marker.with_suffix(".pkl").write_bytes(b"\x80\x04" + made(str(marker))[key] + b".")
    subprocess.run([sys.executable, "-c", UNPICKLER, str(tmp_path)], check=True, timeout=120)
    for _ in range(100):  # one of the commands is not waited for
        if all(marker.exists() for marker in markers.values()):
            break
        time.sleep(0.1)
    assert [key for key, marker in markers.items() if not marker.exists()] == []


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("function", [eval, exec, getattr, __import__, open])
def test_what_pickle_itself_writes_is_refused(tmp_path, protocol, function):
    data = pickle.dumps({"w": Reduced(function, (str(tmp_path / "marker"), "w"))}, protocol)
    with pytest.raises(CheckpointError, match=rf"asks for \w+\.{function.__name__};"):
        read_pickle(data, "file")
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("protocol", [0, 1])
def test_older_protocols_are_refused(protocol):
    with pytest.raises(CheckpointError, match="refused|corrupt"):
        read_pickle(pickle.dumps({"w": Reduced(eval, ("1",))}, protocol), "file")


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("torch", "load"),
        ("torch", "Tensor"),
        ("torch", "storage.UntypedStorage"),
        ("torch", "_utils._rebuild_tensor_v2"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("torch._utils", "_rebuild_sparse_tensor"),
        ("torch.hub", "load"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("collections", "defaultdict"),
        ("asd_jax.checkpoints.torch_globals", "Global"),
        ("", ""),
    ],
)
def test_other_globals_are_refused(module, attribute):
    named = text(module) + text(attribute) + b"\x93"
    refused(named, rf"asks for {module}\.{attribute};")
    refused(name(module, attribute), rf"asks for {module}\.{attribute};")


def test_a_name_cannot_garble_the_message():
    with pytest.raises(CheckpointError) as error:
        run(text("os\x1b[2J\n") + text("x" * 10000) + b"\x93")
    assert str(error.value).isprintable() and len(str(error.value)) < 500


REBUILD = name("torch._utils", "_rebuild_tensor_v2")
VIEW = (number(0), numbers([4]), numbers([1]), b"\x89", DICT)


@pytest.mark.parametrize(
    ("program", "match"),
    [
        (call(text("os.system"), text("x")), "calls a str"),
        (call(name("torch", "FloatStorage"), number(1 << 40)), r"calls a torch\.FloatStorage"),
        (call(name("torch", "float16")), r"calls a torch\.float16"),
        (call(call(name("collections", "OrderedDict"))), "calls a dict"),
        (call(tensor(storage()), number(1)), "calls a StoredTensor"),
        (call(name("collections", "OrderedDict"), b"]"), "OrderedDict with arguments"),
        (name("collections", "OrderedDict") + b"]R", "OrderedDict with bad arguments"),
        (name("collections", "OrderedDict") + b"}R", "OrderedDict with bad arguments"),
        (call(REBUILD), "with 0 arguments"),
        (call(REBUILD, *[number(0)] * 8), "with 8 arguments"),
        (call(REBUILD, *[number(0)] * 9), "bad arguments"),
        (call(REBUILD, text("0"), *VIEW), "on a str, expected a storage"),
        (call(REBUILD, name("torch", "FloatStorage"), *VIEW), "expected a storage"),
        (call(REBUILD, tensor(storage()), *VIEW), "on a StoredTensor, expected a storage"),
        (tensor(storage(), version="v3", rest=[text("float32")]), "with a str, expected a dtype"),
        (
            tensor(storage(), version="v3", rest=[name("torch", "FloatStorage")]),
            "expected a dtype",
        ),
        (tensor(storage("UntypedStorage", module="torch.storage")), "without a dtype"),
        (tensor(storage(), rest=[table({"neg": b"\x88"})]), "negated or conjugated"),
        (tensor(storage(), rest=[table({"conj": number(1)})]), "negated or conjugated"),
        (tensor(storage(), rest=[table({"other": b"\x89"})]), "other than the flags"),
        (tensor(storage(), rest=[text("neg")]), "other than the flags"),
        (call(name("torch._utils", "_rebuild_parameter"), text("x"), b"\x88", DICT), "bad arg"),
        (call(name("torch._utils", "_rebuild_parameter"), tensor(storage())), "bad arguments"),
        (tensor(storage()) + table({"x": b"N"}) + b"b", "state of a StoredTensor"),
        (name("torch", "FloatStorage") + table({}) + b"b", r"state of a torch\.FloatStorage"),
        (DICT + text("x") + b"b", "state of a dict"),
        (DICT + row(table({}), table({})) + b"b", "state of a dict"),
        (text("x") + b"Q", "refers to a str outside"),
        (row(text("storage")) + b"Q", "refers to a tuple outside"),
        (b"]" + b"(" + number(1) + b"eQ", "refers to a list outside"),
        (name("collections", "OrderedDict") + b")\x81", r"operation b'\\x81'"),
        (b"(icollections\nOrderedDict\n", "makes an instance of collections.OrderedDict"),
        (b"\x82\x01", r"operation b'\\x82'"),
        (b"P0\n", "operation b'P'"),
        (b"\x97", r"operation b'\\x97'"),
        (b"\x80\x06", "protocol 6, allowed: 2 to 5"),
        (b"N" * 2, "ends with 2 values"),
        (b"", "ends with 0 values"),
        (b"(N", "ends with 1 values|ends with"),
        (b"N.N", "bytes behind its end"),
        (b"t", "corrupt pickle at byte 2"),
        (b"\x86", "corrupt pickle"),
        (b"R", "corrupt pickle"),
        (b"(R", "corrupt pickle"),
        (b"s", "corrupt pickle"),
        (b"h\x05", "corrupt pickle"),
        (b"q\x00", "corrupt pickle"),
        (b"Na", "corrupt pickle"),
        (b"}(Nu", "sets items of a dict"),
        (b"]NNs", "sets items of a list"),
        (b"}Na", "appends to a dict"),
        (b"X\x02\0\0\0\xff\xff", "UnicodeDecodeError"),
        (b"X\x03\0\0\0\xed\xa0\x80", "UnicodeDecodeError"),
        (b"cos", "is cut off within a name"),
        (number(1) + text("x") + b"\x93", "global named by int and str"),
        (b"G\0", "cut off"),
    ],
)
def test_wrong_operations_are_refused(program, match):
    refused(program, match)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"shape": (5,)}, r"float32 \[5\] that ends at byte 20 of storage '0' of 16"),
        ({"offset": 1}, "ends at byte 20"),
        ({"strides": (2,)}, "ends at byte 28"),
        ({"shape": (1 << 62,)}, "ends at byte"),
        ({"shape": (1 << 63,)}, "bad shape"),
        ({"shape": (-1,)}, "bad shape"),
        ({"strides": (-1,)}, "bad shape"),
        ({"offset": -1}, "bad shape"),
        ({"offset": 1 << 200}, "bad shape"),
        ({"offset": True}, "bad shape"),
        ({"shape": (True,)}, "bad shape"),
        ({"shape": (2, 2)}, "bad shape"),
        ({"shape": (1,) * 65, "strides": (1,) * 65}, "bad shape"),
        ({"shape": ("4",)}, "bad shape"),
    ],
)
def test_impossible_tensors_are_refused(changes, match):
    assert run(tensor(storage())).shape == (4,)
    refused(tensor(storage(), **changes), match)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("value", [b"N", b"}", text("x" * 201), name("torch", "float32")])
def test_wrong_references_to_a_storage_are_refused(place, value):
    fields = [text("storage"), name("torch", "FloatStorage"), text("0"), text("cpu"), number(4)]
    assert run(row(*fields) + b"Q").num_bytes == 16
    if place == 3 and value.startswith(b"X"):
        value = b"]"
    fields[place] = value
    refused(row(*fields) + b"Q", "in a way that torch does not")


@pytest.mark.parametrize("count", [-1, 1 << 63, 1 << 500])
def test_impossible_sizes_of_a_storage_are_refused(count):
    refused(storage(count=count), "in a way that torch does not")


BOMBS = {
    "a text of exabytes": (b"\x8d" + struct.pack("<Q", 1 << 60), "1152921504606846976 more bytes"),
    "a text of 4 GiB": (b"X\xff\xff\xff\xff", "cut off"),
    "bytes of exabytes": (b"\x8e" + struct.pack("<Q", 1 << 60), "operation"),
    "a byte array of exabytes": (b"\x96" + struct.pack("<Q", 1 << 60), "operation"),
    "a frame of exabytes": (b"\x95" + struct.pack("<Q", 1 << 60), "cut off"),
    "a long of 2 GiB": (b"\x8b\xff\xff\xff\x7f", "operation"),
    "decimal digits": (b"I" + b"9" * 1_000_000 + b"\n", "operation"),
    "a memo of 4 billion": (b"Nr\xff\xff\xff\xff0", "operation b'0'"),
    "a key that hashes for ever": (b"})" + b"q\0h\0\x86" * 100 + b"Ns", "key of type tuple"),
    "keys that collide": (
        b"}(" + b"".join(number(k * (2**61 - 1)) + b"N" for k in range(1, 50_000)) + b"u",
        "int below",
    ),
    "marks without end": (b"(" * 100_000, "ends with"),
    "tuples without end": (b")" + b"\x85" * 100_000 + b"Q", "outside of the pickle"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_take_little_time_and_memory(bomb):
    program, match = BOMBS[bomb]
    tracemalloc.start()
    start = time.process_time()
    try:
        refused(program, match)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * len(program) + (1 << 20)
    assert time.process_time() - start < 20


def test_a_pickle_that_is_too_long_is_refused(tmp_path):
    path = write(tmp_path / "m.bin", b"N" * (1 << 22))
    with pytest.raises(CheckpointError, match="data.pkl has 4194307 bytes, allowed: at most"):
        read_torch_file(path)


def test_values_that_contain_themselves_are_no_endless_task(tmp_path):
    path = write(tmp_path / "m.bin", b"}q\1" + text("model") + b"h\1s")
    with pytest.raises(CheckpointError, match=r"'model' \(dict\)"):
        read_torch_file(path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_equal_what_pickle_reads(protocol):
    value = {
        "none": None,
        "flags": [True, False],
        "numbers": (0, 255, 256, 65536, -1, 1 << 40, -(1 << 63), 1.5, -0.0),
        "texts": ["", "é" * 200, "x" * 70000],
        "deep": {"a": {"b": ((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ())}, 7: []},
    }
    value["again"] = value["texts"]
    got = read_pickle(pickle.dumps(value, protocol), "file")
    assert got == value and repr(got) == repr(value)
    assert got["again"] is got["texts"]
