"""A job of two processes: each reads only its own devices' slices, and one checkpoint is saved.

As a script, `test_multi_process.py RANK PORT DIRECTORY`, it is one of the two.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path


def main(rank, port, directory):
    import jax

    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=int(rank))
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from asd_jax.checkpoints.orbax_io import restore_params, save_params
    from asd_jax.checkpoints.placement import place_tensors
    from asd_jax.checkpoints.source import CheckpointError, TensorSource

    values = np.arange(64, dtype=np.float32).reshape(16, 4)
    reads = []

    def fetch(index):
        reads.append([index[0].start, index[0].stop])
        return values[index].copy()

    mesh = jax.make_mesh((4,), ("model",))
    shardings = {"rows": NamedSharding(mesh, P("model")), "whole": NamedSharding(mesh, P())}
    tensors = {name: TensorSource(name, (16, 4), values.dtype, fetch) for name in shardings}
    placed = place_tensors(tensors, "float32", shardings=shardings)
    save_params(directory, placed, metadata={"processes": 2})
    abstract = {
        name: jax.ShapeDtypeStruct((16, 4), "float32", sharding=sharding)
        for name, sharding in shardings.items()
    }
    for array in restore_params(directory, abstract).values():
        assert len(array.addressable_shards) == 2
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(shard.data, values[shard.index])
    try:
        save_params(directory, placed, metadata={})
    except CheckpointError as error:
        print(json.dumps({"reads": reads, "refused": str(error)}))


def test_each_process_reads_its_slices_and_both_save_one_checkpoint(tmp_path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    jobs = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(port), str(tmp_path / "ck")],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        outputs = [job.communicate(timeout=120) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert [job.returncode for job in jobs] == [0, 0], outputs
    reports = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    assert [report["reads"] for report in reports] == [
        [[0, 4], [4, 8], [0, 16]],
        [[8, 12], [12, 16], [0, 16]],
    ]
    assert all("ck: exists already" in report["refused"] for report in reports)
    assert [path.name for path in tmp_path.iterdir()] == ["ck"]


if __name__ == "__main__":
    main(*sys.argv[1:])
