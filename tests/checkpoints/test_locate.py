"""From names to files: local paths first, then the hub, and what is said when neither works."""

import fnmatch
import json
import sys
from pathlib import Path
from unittest import mock

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants, errors
from safetensors.numpy import save_file

from asd_jax.checkpoints.locate import open_checkpoint, resolve
from asd_jax.checkpoints.source import CheckpointError

CONFIG = {"model_type": "llama"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def model_dir(path):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file({"w": np.ones(2, np.float32)}, path / "model.safetensors")
    return path


def test_local_paths_come_first(tmp_path, monkeypatch):
    path = model_dir(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert resolve("org/name").resolve() == path
    assert open_checkpoint(resolve("org/name")).config == CONFIG
    assert resolve(path) == path


@pytest.mark.parametrize("name", ["./org/gone", "gone.gguf", "org/gone.gguf", "a/b/c", "gone"])
def test_a_missing_local_path_is_not_sent_to_the_hub(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=f"{name}: no such file or directory, and not a hub"):
        resolve(name)


@pytest.mark.parametrize("name", ["", " ", "\t\n"])
@pytest.mark.parametrize("kind", ["target", "drafter"])
def test_an_empty_name_is_no_path(tmp_path, monkeypatch, name, kind):
    monkeypatch.chdir(model_dir(tmp_path / "m"))
    with pytest.raises(CheckpointError) as caught:
        resolve(name, kind=kind)
    assert f"path_or_id: got {name!r}, allowed is a GGUF file, a Hugging Face directory" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "name", ["x" * 5000, "./" + "x" * 5000, "a/b/" * 2000, "~no-such-user/model", "a\0b"]
)
def test_a_name_that_no_path_can_have_is_named_in_short(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="no such file or directory, and not a hub") as caught:
        resolve(name)
    assert str(caught.value).startswith(name[:200]) and len(str(caught.value)) < 500


def test_a_path_object_is_not_sent_to_the_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="org/gone: no such file or directory"):
        resolve(Path("org/gone"))


def test_a_hub_id_without_the_extra_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"org/name: .*pip install 'asd_jax\[hub\]'"):
        resolve("org/name")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that serves one commit from a folder and notes what it was asked for."""
    folder = tmp_path / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    calls = []

    def snapshot_download(repo_id, *, revision, allow_patterns, ignore_patterns):
        calls.append((repo_id, revision, allow_patterns))
        assert ignore_patterns == ["*/*"]
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return mock.Mock(folder=folder, calls=calls)


def test_both_downloads_are_of_one_commit(hub):
    assert resolve("org/name-1.5@refs/pr/1") == hub.folder
    assert [call[:2] for call in hub.calls] == [
        ("org/name-1.5", "refs/pr/1"),
        ("org/name-1.5", COMMIT),
    ]
    assert hub.calls[0][2] == ["*.json", "*.jinja", "tokenizer.model"]
    assert resolve("org/name") == hub.folder
    assert hub.calls[2][:2] == ("org/name", None)


def test_of_one_file_and_shards_only_what_the_index_names_is_downloaded(hub):
    resolve("org/name")
    assert hub.calls[-1][2] == ["model.safetensors"]
    index = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "model-1"}}
    (hub.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    resolve("org/name")
    assert hub.calls[-1][2] == ["model-1", "model-1.safetensors", "model-2.safetensors"]


def serve(hub, monkeypatch, *files):
    """Makes the hub's repository hold these files; a download copies what it was asked for."""

    def snapshot_download(repo_id, *, revision, allow_patterns, ignore_patterns):
        hub.calls.append((repo_id, revision, allow_patterns))
        for name in files:
            if any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns):
                shards = {"weight_map": {"w": name.removesuffix(".index.json") + "-1"}}
                (hub.folder / name).write_text(json.dumps(shards))
        return str(hub.folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


@pytest.mark.parametrize(
    ("files", "fetched"),
    [
        (["model.safetensors", "pytorch_model.bin", "medusa_lm_head.pt"], ["model.safetensors"]),
        (
            ["model.safetensors.index.json", "model.safetensors-1", "pytorch_model.bin"],
            ["model.safetensors-1"],
        ),
        (["medusa_lm_head.safetensors", "medusa_lm_head.pt"], ["medusa_lm_head.safetensors"]),
        (["pytorch_model.bin"], ["pytorch_model.bin"]),
        (["pytorch_model.bin.index.json", "pytorch_model.bin-1"], ["pytorch_model.bin-1"]),
        (["medusa_lm_head.pt"], ["medusa_lm_head.pt"]),
        (["optimizer.pt", "model.onnx"], []),
    ],
)
def test_of_a_drafter_torch_files_are_downloaded_only_for_want_of_others(
    hub, monkeypatch, files, fetched
):
    serve(hub, monkeypatch, "config.json", *files)
    assert resolve("org/name@v1", kind="drafter") == hub.folder
    got = {path.name for path in hub.folder.iterdir()}
    assert got == {"config.json", *fetched, *(name for name in files if name.endswith(".json"))}
    assert [call[1] for call in hub.calls] == ["v1"] + [COMMIT] * (len(hub.calls) - 1)


def test_of_a_target_torch_files_are_never_downloaded(hub, monkeypatch):
    serve(hub, monkeypatch, "config.json", "pytorch_model.bin")
    resolve("org/name")
    assert [path.name for path in hub.folder.iterdir()] == ["config.json"]


def test_other_kinds_are_refused(tmp_path):
    with pytest.raises(ValueError, match="kind: got 'speculator', allowed: 'target', 'drafter'"):
        resolve(tmp_path, kind="speculator")


def test_a_bad_index_from_the_hub_is_named(hub):
    (hub.folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"index\.json: weight_map must map"):
        resolve("org/name")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (errors.GatedRepoError, r"asked for at https://huggingface\.co/org/name; .*HF_TOKEN: why"),
        (errors.RepositoryNotFoundError, "no such repository, or it is private; .*HF_TOKEN: why"),
        (errors.RevisionNotFoundError, "has no such revision: why"),
        (errors.LocalEntryNotFoundError, "not in the local cache, and the hub cannot be .*: why"),
        (OSError, "hub download failed: why"),
    ],
)
def test_every_failure_says_what_to_do(monkeypatch, kind, message):
    http = issubclass(kind, errors.HfHubHTTPError)
    error = kind("why", response=mock.MagicMock()) if http else kind("why")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", mock.Mock(side_effect=error))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(CheckpointError, match=f"(?s)org/name@v2: no such local path.*{message}"):
        resolve("org/name@v2")


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """The real client without network, and with a cache of its own."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


def test_offline_what_is_not_cached_is_named(offline):
    with pytest.raises(CheckpointError, match="not in the local cache, and HF_HUB_OFFLINE is set"):
        resolve("org/name")


def test_offline_a_cached_model_is_found_at_its_revision(offline):
    folder = model_dir(offline / "models--org--name" / "snapshots" / COMMIT)
    refs = offline / "models--org--name" / "refs"
    refs.mkdir()
    for revision in ("main", "v1"):
        (refs / revision).write_text(COMMIT)
    for name in ("org/name", "org/name@v1", f"org/name@{COMMIT}"):
        assert open_checkpoint(resolve(name)).path == folder
    with pytest.raises(CheckpointError, match="org/name@v2: .*not in the local cache"):
        resolve("org/name@v2")


def test_offline_a_cached_drafter_of_torch_files_is_found(offline):
    folder = offline / "models--org--name" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert resolve(f"org/name@{COMMIT}", kind="drafter") == folder
