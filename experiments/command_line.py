"""The `--config` flag and its messages, in the words of a configuration's fields.

A program that imports this has the flag `--config=FILE` with `--config.FIELD=value` overrides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from absl import flags, logging
from ml_collections import config_flags

from experiments.fields import ConfigError, Schema

_CONFIG = config_flags.DEFINE_config_file("config", None, "A file in experiments/configs/.")
UNUSABLE = 2
C = TypeVar("C")


def checked_config(schema: Schema[C]) -> tuple[C, str]:
    """Returns the configuration of the command line and its name, after parsing.

    Raises:
      ConfigError: It cannot be run.
    """
    if not any("verbosity" in argument for argument in sys.argv):
        logging.set_verbosity(logging.WARNING)  # absl would list the backends that JAX lacks
    flag: Any = flags.FLAGS["config"]
    return schema.read(flag.value), Path(flag.config_filename).stem


def _parse(schema: Schema, argv: list[str]) -> list[str]:
    """Parses the command line, with messages in the words of the configuration."""
    if any(argument in ("-h", "-help", "--help", "--helpfull") for argument in argv[1:]):
        print(sys.modules["__main__"].__doc__)
        for name, default, about in schema.table():
            print(f"  --config.{name}={default}\n      {about}")
        sys.exit(0)
    for argument in argv[1:]:
        if argument.lstrip("-").startswith("config."):
            name = argument.lstrip("-").split("=")[0].removeprefix("config.")
            if (told := schema.unknown_field(name)) is not None:
                raise ConfigError(told)
    try:
        rest = flags.FLAGS(argv)
        if flags.FLAGS.config is None:
            raise ConfigError("--config=FILE is missing, such as experiments/configs/NAME.py")
    except flags.IllegalFlagValueError as error:
        # "flag --config.NAME=VALUE: reason", or the plain name of another flag
        flag, _, reason = str(error).partition(": ")
        name, _, value = flag.removeprefix("flag --config.").partition("=")
        if flag.startswith("flag --config."):
            reason = f"{name}: got {value!r}, allowed is {schema.describe(name)}"
        raise ConfigError(reason or flag) from error
    except flags.Error as error:
        raise ConfigError(str(error)) from error
    if len(rest) > 1:
        raise ConfigError(f"got {rest[1]!r}, allowed are only flags such as --config.FIELD=value")
    return rest


def parser(schema: Schema) -> Callable[[list[str]], list[str]]:
    """Returns the parser of a command line for `absl.app.run`.

    Whatever is wrong with the command line ends the program with status 2. The parser returns the
    program's name, as everything else has been understood.
    """

    def parse_or_exit(argv: list[str]) -> list[str]:
        try:
            return _parse(schema, argv)
        except ConfigError as error:
            complain(str(error))
        except Exception as error:  # a configuration is a program and may raise anything
            complain(f"the configuration cannot be loaded: {error}")
        sys.exit(UNUSABLE)

    return parse_or_exit


def complain(message: str) -> None:
    """Prints each line of a message to stderr as an error."""
    for line in message.splitlines():
        print(f"error: {line}", file=sys.stderr)
