"""What the devices exchange in one round, read from the compiled program's text.

The round is the body of the program's one loop without a known number of iterations. From there
every called computation is followed; a loop inside counts as often as it runs. Of a branch, such as
the one between greedy and sampled scoring, one side is followed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)
_OPERATION = re.compile(r"= .*? (while|conditional|call|fusion|async-start)\(")
_CALLEES = re.compile(
    r"(?:body|condition|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIP_COUNT = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_BITS = re.compile(r"[a-z]+(\d+)")


class Collective(NamedTuple):
    """A kind of exchange.

    Attributes:
      kind: As HLO names it, such as all-reduce.
      dtype: HLO's name of the type, such as bf16.
      elements: Numbers in one device's result.
      group_size: Devices that exchange among themselves.
      times: How often a round does it.
    """

    kind: str
    dtype: str
    elements: int
    group_size: int
    times: int

    @property
    def bytes(self) -> int:
        """Bytes of the results of one device in one round, not what goes over the wires."""
        bits = _BITS.match(self.dtype)
        itemsize = max(int(bits.group(1)) // 8, 1) if bits else 1  # pred has no digits
        return self.elements * itemsize * self.times


def in_round(text: str, *, is_sampled: bool, promoted_dtype: str = "f32") -> tuple[Collective, ...]:
    """Returns the exchanges of one round, alike ones added up, the largest first.

    Args:
      text: Optimised HLO of `run_rounds`, which holds one device's program.
      is_sampled: Whether some request samples; else all are greedy.
      promoted_dtype: Type of the sums that XLA's CPU backend has widened. It marks them, since it
        cannot add bfloat16 across devices; accelerators can.

    Raises:
      ValueError: The text has no round, or an exchange in a loop of unknown length.
    """
    computations = _computations(text)
    found: Counter[tuple[str, str, int, int]] = Counter()
    for line, times in _walk(computations, _round_body(computations), int(is_sampled), 1):
        found[_read(line, promoted_dtype)] += times
    exchanges = [Collective(*key, times) for key, times in found.items()]
    return tuple(sorted(exchanges, key=lambda each: (-each.bytes, each)))


def _computations(text: str) -> dict[str, list[str]]:
    """Returns the lines of every computation by name; the entry is also under ""."""
    computations: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if start := _COMPUTATION.match(line):
            lines = computations[start.group(2)] = []
            if start.group(1):
                computations[""] = lines
        else:
            lines.append(line)
    return computations


def _round_body(computations: dict[str, list[str]]) -> str:
    loops = [
        line
        for line in computations.get("", ())
        if " while(" in line and not _TRIP_COUNT.search(line)
    ]
    if len(loops) != 1:
        raise ValueError(f"program: got {len(loops)} open loops, allowed is 1, that of the rounds")
    return re.findall(r"body=%?([\w.\-]+)", loops[0])[0]


def _walk(
    computations: dict[str, list[str]], name: str, branch: int, times: int
) -> Iterator[tuple[str, int]]:
    """Yields the line of every exchange reached from a computation and how often it runs."""
    for line in computations[name]:
        if _COLLECTIVE.search(line):
            yield line, times
            continue
        operation = _OPERATION.search(line)
        if operation is None:
            continue
        inner = times
        if operation.group(1) == "while":
            count = _TRIP_COUNT.search(line)
            inner = times * int(count.group(1)) if count else 0
        for callee in _callees(line, branch):
            for found, often in _walk(computations, callee, branch, inner):
                if not often:
                    raise ValueError(f"program: an exchange in a loop of unknown length: {found}")
                yield found, often


def _callees(line: str, branch: int) -> list[str]:
    """Returns the computations that an instruction runs; the false side of a branch is number 0."""
    if branches := _BRANCHES.search(line):
        return [branches.group(1).split(",")[branch].strip().lstrip("%")]
    if " conditional(" in line:
        side = ("false", "true")[branch]
        return re.findall(rf"{side}_computation=%?([\w.\-]+)", line)
    return _CALLEES.findall(line)


def _read(line: str, promoted_dtype: str) -> tuple[str, str, int, int]:
    """Returns kind, dtype, elements and group size of an exchange."""
    match = _COLLECTIVE.search(line)
    assert match is not None
    shapes, kind = match.groups()
    arrays = re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    elements = sum(math.prod(int(n) for n in size.split(",") if n) for _, size in arrays)
    dtype = arrays[0][0]
    if re.search(r"to_apply=%?[\w.\-]*_promoted", line):
        dtype = promoted_dtype
    return kind, dtype, elements, _group_size(line)


def _group_size(line: str) -> int:
    """Returns the devices of a group, from either spelling; 2 for pairs."""
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return len(listed.group(1).split(","))
    if counted := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(counted.group(1))
    return 2
