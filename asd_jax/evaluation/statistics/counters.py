"""Counts of the authors' formal runs: time on the wall, accepted drafts, answers that changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class TimedRequest:
    """One formal request, from its first attempt to its last.

    Attributes:
      start_ns: Just before the first attempt, on a monotonic clock.
      end_ns: When it was answered or given up.
      completion_tokens: Tokens of the answer; 0 for a request that was given up, which stays in.
      attempts: 1 or more.
    """

    start_ns: int
    end_ns: int
    completion_tokens: int
    attempts: int = 1


@dataclasses.dataclass(frozen=True)
class FormalTiming:
    """Speed of a formal run.

    Attributes:
      start_ns: Start of the first request; warm-ups lie before it.
      end_ns: End of the last request.
      wall_seconds: Between the two: queueing, retries and waits between them included.
      completion_tokens: Of all requests.
      tokens_per_second: `completion_tokens` over `wall_seconds`.
      retry_attempts: Attempts beyond the first.
    """

    start_ns: int
    end_ns: int
    wall_seconds: float
    completion_tokens: int
    tokens_per_second: float
    retry_attempts: int


def formal_timing(requests: Sequence[TimedRequest]) -> FormalTiming:
    """Adds up the formal requests of one arm; leave warm-ups out.

    Raises:
      ValueError: There are none, one ends before it starts, has negative tokens or no attempt, or
        no time passed.
    """
    if not requests:
        raise ValueError("requests: got none, needs 1 or more")
    for i, request in enumerate(requests):
        if request.end_ns < request.start_ns:
            raise ValueError(
                f"end_ns: got {request.end_ns} at request {i}, needs start_ns = "
                f"{request.start_ns} or more"
            )
        if request.completion_tokens < 0:
            raise ValueError(
                f"completion_tokens: got {request.completion_tokens} at request {i}, "
                "needs 0 or more"
            )
        if request.attempts < 1:
            raise ValueError(f"attempts: got {request.attempts} at request {i}, needs 1 or more")
    start = min(request.start_ns for request in requests)
    end = max(request.end_ns for request in requests)
    if start == end:
        raise ValueError(f"requests: all start and end at {start} ns, needs a positive time")
    wall, tokens = (end - start) / 1e9, sum(request.completion_tokens for request in requests)
    return FormalTiming(
        start_ns=start,
        end_ns=end,
        wall_seconds=wall,
        completion_tokens=tokens,
        tokens_per_second=tokens / wall,
        retry_attempts=sum(request.attempts - 1 for request in requests),
    )


@dataclasses.dataclass(frozen=True)
class AcceptanceCounts:
    """What was proposed and kept in one arm.

    Attributes:
      proposals: Target forwards that verified a proposal.
      proposed: Draft tokens in them.
      accepted: Draft tokens kept.
      by_position: Proposals in which draft position g was kept. [G].
      completion_tokens: Tokens of the answers.
    """

    proposals: int
    proposed: int
    accepted: int
    by_position: tuple[int, ...]
    completion_tokens: int

    @property
    def acceptance_rate(self) -> float:
        """Share of the draft tokens that was kept."""
        return self.accepted / self.proposed

    @property
    def accepted_per_proposal(self) -> float:
        """Draft tokens kept per proposal; the target's own token is not counted."""
        return self.accepted / self.proposals

    @property
    def acceptance_length_with_bonus(self) -> float:
        """Completion tokens per proposal: the authors' "acceptance length including bonus".

        It is not `accepted_per_proposal` + 1: the token of the prefill is in it, and tokens cut
        away behind a stop are not.
        """
        return self.completion_tokens / self.proposals


def count_acceptance(
    histograms: npt.ArrayLike, proposed: npt.ArrayLike, completion_tokens: npt.ArrayLike
) -> AcceptanceCounts:
    """Adds up N requests that drafted up to G tokens a proposal.

    Args:
      histograms: Proposals by the number of draft tokens kept, 0..G. int [N, G + 1].
      proposed: Draft tokens proposed. int [N].
      completion_tokens: Tokens of the answer. int [N].

    Raises:
      ValueError: Shapes do not fit, a count is negative or no integer, there is no proposal or no
        draft token, or a request kept more than it proposed or proposed more than G a time.
    """
    counts = _counts("histograms", histograms)
    drafts = _counts("proposed", proposed)
    tokens = _counts("completion_tokens", completion_tokens)
    if counts.ndim != 2 or not drafts.shape == tokens.shape == counts.shape[:1]:
        raise ValueError(
            f"got histograms {counts.shape}, proposed {drafts.shape} and completion_tokens "
            f"{tokens.shape}, needs [N, G + 1], [N] and [N]"
        )
    num_draft = counts.shape[1] - 1
    proposals, kept = counts.sum(axis=1), counts @ np.arange(num_draft + 1)
    bad = (drafts < kept) | (drafts > proposals * num_draft)
    if bad.any():
        i = int(bad.argmax())
        raise ValueError(
            f"proposed: got {drafts[i]} at request {i}, which kept {kept[i]} in {proposals[i]} "
            f"proposals of up to {num_draft}"
        )
    if not drafts.sum():
        raise ValueError("proposed: got 0 draft tokens in all, needs 1 or more")
    total = counts.sum(axis=0)
    return AcceptanceCounts(
        proposals=int(proposals.sum()),
        proposed=int(drafts.sum()),
        accepted=int(kept.sum()),
        by_position=tuple(int(total[g + 1 :].sum()) for g in range(num_draft)),
        completion_tokens=int(tokens.sum()),
    )


def _counts(name: str, numbers: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = np.asarray(numbers)
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name}: got {array.dtype}, needs integers")
    if (array < 0).any():
        raise ValueError(f"{name}: got {array.min()}, needs 0 or more")
    return array.astype(np.int64)


def hash_divergence(strict: Sequence[Sequence[int]], candidate: Sequence[Sequence[int]]) -> float:
    """Returns the share of requests whose token ids differ from strict decoding's at all.

    The authors compare digests of the answers; the lists themselves differ in the same cases.

    Args:
      strict: Token ids of each answer.
      candidate: The same requests, in the same order.

    Raises:
      ValueError: There are none, or not as many of one as of the other.
    """
    if not strict or len(strict) != len(candidate):
        raise ValueError(
            f"got {len(strict)} strict and {len(candidate)} candidate answers, "
            "needs the same number, 1 or more"
        )
    pairs = zip(strict, candidate, strict=True)
    return sum(list(a) != list(b) for a, b in pairs) / len(strict)
