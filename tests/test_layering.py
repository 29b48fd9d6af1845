"""Holds the import table: what each part of asd_jax may import, found by reading every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = "asd_jax"
TREES = (PACKAGE, "experiments", "benchmarks", "tests")

# A part is a module of asd_jax, or a package with everything in it. Each may import itself and the
# parts named here; `asd_jax/__init__` is no part and may import them all.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "scoring": frozenset(),
    "sharding": frozenset(),
    "types": frozenset({"scoring", "sharding"}),
    "sampling": frozenset({"types", "scoring"}),
    "cache": frozenset({"types"}),
    "verifier": frozenset({"types", "scoring"}),
    "request": frozenset({"types", "sampling"}),
    "state": frozenset({"types"}),
    "round": frozenset({"types", "scoring", "sharding", "sampling", "cache", "request", "state"}),
    "acceptance": frozenset({"types", "verifier", "sampling"}),
    "models": frozenset({"types", "cache", "sharding"}),
    "checkpoints": frozenset({"types", "sharding"}),
    "tokenizer": frozenset({"types"}),
    "drafters": frozenset({"types", "models", "cache", "sampling", "scoring", "sharding"}),
    "decode": frozenset({"types", "sharding", "cache", "request", "state", "round"}),
}
MAY_IMPORT |= dict.fromkeys(("load", "training", "evaluation"), frozenset(MAY_IMPORT))
MAY_IMPORT["footprint"] = MAY_IMPORT["load"] | {"load"}
# What trains drafters is what evaluation wrote: prompt files, chat encoding, answers.
MAY_IMPORT["training"] = MAY_IMPORT["load"] | {"evaluation"}
NEVER_IN_PACKAGE = frozenset({"experiments", "benchmarks", "tests", "torch", "transformers"})
ABSL_TREES = frozenset({"experiments", "benchmarks"})
NO_NOUN = frozenset({"utils", "common", "helpers", "base"})


class Import(NamedTuple):
    """An imported name, written out from its top-level package."""

    line: int
    name: str


def module_name(path: Path) -> str:
    """Returns the dotted name of a file given relative to the repository."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_imports(source: str, path: Path) -> Iterator[Import]:
    """Yields every import in a module, also those in functions and under TYPE_CHECKING."""
    package = path.parent.parts
    for node in ast.walk(ast.parse(source, str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            origin = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*origin, *filter(None, [node.module])])
            for alias in node.names:
                yield Import(node.lineno, f"{stem}.{alias.name}")
        elif isinstance(node, ast.Call) and _is_import_call(node.func):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield Import(node.lineno, str(node.args[0].value))


def _is_import_call(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def violations(source: str, path: Path) -> list[str]:
    """Returns a line for each import in the module that breaks a rule."""
    tree, *inside = module_name(path).split(".")
    found = []
    for line, name in read_imports(source, path):
        top, *rest = name.split(".")
        reason = None
        if top == "absl" and tree not in ABSL_TREES:
            reason = f"absl belongs in {' and '.join(sorted(ABSL_TREES))}"
        elif tree == PACKAGE and top in NEVER_IN_PACKAGE:
            reason = f"{PACKAGE} never imports {top}"
        elif tree == PACKAGE and top == PACKAGE and inside:
            reason = _layer_violation(inside[0], rest[0] if rest else "")
        if reason:
            found.append(f"{path}:{line}: imports {name}: {reason}")
    return found


def _layer_violation(part: str, imported: str) -> str | None:
    allowed = MAY_IMPORT.get(part)
    if allowed is None:
        return f"{part} has no row in MAY_IMPORT"
    if imported == part or imported in allowed:
        return None
    return f"{part} may import {', '.join(sorted(allowed)) or 'nothing'} of {PACKAGE}"


def name_violations(path: Path) -> list[str]:
    """Returns a line if a file, or a folder that it is in, is named for no thing."""
    names = [part.lstrip("_") for part in path.with_suffix("").parts]
    return [f"{path}: name a module for what it holds" for name in names if name in NO_NOUN]


def modules() -> list[Path]:
    """Returns every Python file, relative to the repository."""
    paths = [path for tree in TREES for path in (REPOSITORY / tree).rglob("*.py")]
    return sorted(path.relative_to(REPOSITORY) for path in paths)


def test_every_import_is_allowed():
    found = []
    for path in modules():
        found += violations((REPOSITORY / path).read_text(encoding="utf-8"), path)
    assert not found, "\n".join(found)


def test_every_module_has_a_row_and_a_noun():
    parts = {path.parts[1].removesuffix(".py") for path in modules() if path.parts[0] == PACKAGE}
    assert parts - {"__init__"} <= MAY_IMPORT.keys()
    assert not [line for path in modules() for line in name_violations(path)]


def test_the_walk_reaches_the_modules():
    reached = set(map(str, modules()))
    assert {"asd_jax/decode.py", "asd_jax/drafters/ngram.py", "tests/test_layering.py"} <= reached


def path_of(part: str) -> Path:
    """Returns a file for a synthetic module of a part."""
    packages = ("models", "checkpoints", "tokenizer", "drafters", "training", "evaluation")
    return Path(PACKAGE, part, "new.py") if part in packages else Path(PACKAGE, f"{part}.py")


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_each_row_allows_what_it_names_and_nothing_else(part):
    for imported in MAY_IMPORT:
        found = violations(f"from asd_jax.{imported} import name", path_of(part))
        assert bool(found) == (imported != part and imported not in MAY_IMPORT[part]), imported


# Written out apart from the table, so that a wrong row shows.
@pytest.mark.parametrize(
    ("part", "imported"),
    [
        ("types", "sampling"),
        ("sampling", "cache"),
        ("cache", "models.layers"),
        ("sharding", "models"),
        ("verifier", "sampling"),
        ("verifier", "acceptance"),
        ("acceptance", "decode"),
        ("models", "drafters.ngram"),
        ("models", "checkpoints.key_map"),
        ("checkpoints", "models.transformer"),
        ("tokenizer", "load"),
        ("drafters", "verifier"),
        ("drafters", "decode"),
        ("decode", "verifier"),
        ("decode", "acceptance"),
        ("decode", "drafters.ngram"),
        ("decode", "models.transformer"),
        ("load", "training.losses"),
        ("training", "load"),
        ("evaluation", "training.losses"),
    ],
)
def test_an_import_upward_or_sideways_is_found(part, imported):
    assert violations(f"from asd_jax.{imported} import name", path_of(part))


@pytest.mark.parametrize(
    "source",
    [
        "import asd_jax.verifier",
        "import asd_jax.verifier as rule",
        "import jax, asd_jax.verifier",
        "from asd_jax import verifier",
        "from asd_jax import types, verifier",
        "from asd_jax.verifier import verify",
        "from . import verifier",
        "from .verifier import verify",
        "import asd_jax",
        "from asd_jax import DecodeConfig",
        "from asd_jax import *",
        "def lazy():\n    from asd_jax import verifier",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from asd_jax import verifier",
        "try:\n    import asd_jax.verifier\nexcept ImportError:\n    pass",
        "import importlib\nimportlib.import_module('asd_jax.verifier')",
        "__import__('asd_jax.verifier')",
    ],
)
def test_every_spelling_of_an_import_is_read(source):
    assert len(violations(source, Path("asd_jax/decode.py"))) == 1


def test_relative_imports_count_from_their_package():
    assert not violations("from . import ngram", Path("asd_jax/drafters/medusa.py"))
    assert not violations("from ..cache import KVCache", Path("asd_jax/drafters/medusa.py"))
    assert violations("from .. import decode", Path("asd_jax/drafters/medusa.py"))
    assert violations("from ..decode import decode", Path("asd_jax/drafters/__init__.py"))
    assert not violations("from .ngram import ngram", Path("asd_jax/drafters/__init__.py"))


def test_the_package_itself_may_import_every_part():
    for part in MAY_IMPORT:
        assert not violations(f"from asd_jax.{part} import name", Path("asd_jax/__init__.py"))


def test_an_import_in_a_module_without_a_row_is_found():
    assert violations("from asd_jax.types import Ledger", Path("asd_jax/novel.py"))


@pytest.mark.parametrize("name", sorted(NEVER_IN_PACKAGE))
@pytest.mark.parametrize("module", ["__init__.py", "decode.py", "checkpoints/load_hf.py"])
def test_the_package_never_imports_its_users_or_torch(name, module):
    path = Path(PACKAGE, module)
    assert violations(f"import {name}", path)
    assert violations(f"def lazy():\n    from {name}.part import thing", path)
    assert not violations(f"import {name}_other", path)
    assert not violations(f"import {name}", Path("tests/test_parity.py"))


@pytest.mark.parametrize("source", ["import absl", "from absl import flags", "import absl.app"])
def test_absl_stays_in_experiments_and_benchmarks(source):
    assert violations(source, Path("asd_jax/evaluation/frontier.py"))
    assert violations(source, Path("tests/test_decode.py"))
    assert not violations(source, Path("experiments/decode.py"))
    assert not violations(source, Path("benchmarks/verifier.py"))


@pytest.mark.parametrize("name", sorted(NO_NOUN))
def test_a_module_without_a_noun_is_found(name):
    assert name_violations(Path(f"asd_jax/models/{name}.py"))
    assert name_violations(Path(f"asd_jax/_{name}.py"))
    assert name_violations(Path(f"tests/{name}/test_cache.py"))
    assert not name_violations(Path(f"asd_jax/{name}_of_rows.py"))
