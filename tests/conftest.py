"""The machine that every test sees: 8 CPU devices, quick compilation, strict promotion."""

import os
from pathlib import Path

_FLAGS = {
    "--xla_force_host_platform_device_count": 8,
    "--xla_backend_optimization_level": 0,  # compiles in half the time, and most time is that
}
for _name, _value in _FLAGS.items():
    if _name not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_name}={_value}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402  (the flags above are read when jax is imported)
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

settings.register_profile("dev", deadline=None, max_examples=60)
settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# Each compiled program keeps pages mapped, and Linux lets a process have 65,530 mappings at most;
# the next program then dies in the compiler. A worker that runs most of the suite comes there.
_MOST_MAPPINGS = 30_000


@pytest.fixture(autouse=True, scope="module")
def _few_programs():
    """Lets go of compiled programs between files, once there are many."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > _MOST_MAPPINGS:
        jax.clear_caches()
