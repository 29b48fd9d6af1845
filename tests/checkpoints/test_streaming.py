"""Peak memory of placing a checkpoint of 2 GB, measured in a process of its own.

As a script, `test_streaming.py DIRECTORY one|mesh`, it places the checkpoint in that directory on
one device or over a mesh, and prints what it took as one line of JSON.
"""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

HIDDEN, FF, KV, VOCAB, LAYERS = 2048, 5632, 512, 32000, 20
LAYERS_IN_SHARD = 5
PIECE = 1 << 22
MiB = 1 << 20


def layer_shapes(layer):
    prefix = f"model.layers.{layer}."
    return {
        f"{prefix}input_layernorm.weight": (HIDDEN,),
        f"{prefix}self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        f"{prefix}self_attn.k_proj.weight": (KV, HIDDEN),
        f"{prefix}self_attn.v_proj.weight": (KV, HIDDEN),
        f"{prefix}self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
        f"{prefix}mlp.gate_proj.weight": (FF, HIDDEN),
        f"{prefix}mlp.up_proj.weight": (FF, HIDDEN),
        f"{prefix}mlp.down_proj.weight": (HIDDEN, FF),
    }


def shard_shapes():
    """Four shards of layers, between one of the embedding and one of the output projection."""
    middle = [
        {k: v for n in range(first, first + LAYERS_IN_SHARD) for k, v in layer_shapes(n).items()}
        for first in range(0, LAYERS, LAYERS_IN_SHARD)
    ]
    ends = {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}
    return [{"model.embed_tokens.weight": (VOCAB, HIDDEN)}, *middle, ends]


def pieces(name, shape):
    """Yields a tensor's random values, positive and finite, a few MB at a time."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    size = int(np.prod(shape))
    for first in range(0, size, PIECE):
        bits = rng.integers(0, 0x4000, min(PIECE, size - first), dtype=np.uint16)
        yield bits.view(ml_dtypes.bfloat16)


def write_checkpoint(directory):
    weight_map = {}
    for number, shapes in enumerate(shard_shapes(), start=1):
        shard = f"model-{number:05}-of-00006.safetensors"
        header, at = {}, 0
        for name, shape in shapes.items():
            end = at + 2 * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
            weight_map[name], at = shard, end
        content = json.dumps(header).encode()
        with (directory / shard).open("wb") as stream:
            stream.write(struct.pack("<Q", len(content)) + content)
            for name, shape in shapes.items():
                for piece in pieces(name, shape):
                    stream.write(piece.tobytes())
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text('{"model_type": "llama"}')


def memory_in_use(field):
    """Bytes resident now (VmRSS) or at most so far (VmHWM).

    Not `ru_maxrss`: a child process begins with its parent's.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) * 1024


def main(directory, where):
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from asd_jax.checkpoints.load_hf import open_hf
    from asd_jax.checkpoints.placement import place_tensors

    jax.block_until_ready(jax.device_put(np.ones(2)))  # the backend, as much as the imports
    baseline = memory_in_use("VmRSS")
    tensors = open_hf(directory).tensors
    shardings = None
    if where == "mesh":
        mesh = jax.make_mesh((2, 4), ("data", "model"))
        columns = r"(o_proj|down_proj)\.weight"
        shardings = {
            name: NamedSharding(
                mesh,
                P()
                if "norm" in name
                else P("data", "model")
                if re.search(columns, name)
                else P("model"),
            )
            for name in tensors
        }
    progress = []
    placed = place_tensors(
        tensors, "bfloat16", shardings=shardings, on_progress=lambda *args: progress.append(args)
    )
    peak = memory_in_use("VmHWM")
    checked = ["lm_head.weight", "model.layers.7.mlp.down_proj.weight", "model.norm.weight"]
    for name in checked:
        want = np.concatenate(list(pieces(name, placed[name].shape))).reshape(placed[name].shape)
        for shard in placed[name].addressable_shards:
            np.testing.assert_array_equal(
                np.asarray(shard.data).view(np.uint16), want[shard.index].view(np.uint16)
            )
    report = {
        "devices": len(placed["lm_head.weight"].devices()),
        "placed": sum(array.nbytes for array in placed.values()),
        "peak": peak - baseline,
        "progress": progress,
    }
    print(json.dumps(report))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("two_gigabytes")
    write_checkpoint(directory)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "devices"), [("one", 1), ("mesh", 8)])
def test_peak_memory_is_the_parameters_and_less_than_a_shard(checkpoint, where, devices):
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    run = subprocess.run(
        [sys.executable, __file__, str(checkpoint), where],
        env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    total = len(report["progress"])
    shards = [file.stat().st_size for file in checkpoint.glob("*.safetensors")]
    print(
        f"{where}: {sum(shards) / MiB:.0f} MiB in {len(shards)} shards, the largest "
        f"{max(shards) / MiB:.0f} MiB; placed {report['placed'] / MiB:.0f} MiB, peak over the "
        f"baseline {report['peak'] / MiB:.0f} MiB"
    )
    assert report["devices"] == devices
    assert report["progress"] == [[done, total] for done in range(1, total + 1)]
    assert total == 9 * LAYERS + 3 and report["placed"] > 2e9
    assert report["peak"] >= report["placed"], "the measure misses the parameters themselves"
    assert report["peak"] < report["placed"] + 1.2 * max(shards)
    # On a CPU arrays take over the buffers, so what is left is a piece and what JAX itself adds.
    assert report["peak"] < report["placed"] + 0.5 * max(shards)


if __name__ == "__main__":
    main(*sys.argv[1:])
