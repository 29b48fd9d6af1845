"""Studies built in code, and pages read back as a tree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

VOID = frozenset({"br", "hr", "input", "link", "meta", "wbr"})
TASKS = ("gsm8k", "math500", "humaneval", "mbpp", "mt_bench", "ifeval", "summaries")


class Node:
    def __init__(self, name: str, attributes: dict[str, str | None]):
        self.name = name
        self.attributes = attributes
        self.children: list[Node | str] = []

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def all(self, name: str, kind: str | None = None) -> list[Node]:
        """Returns the elements of a name that have all of some classes."""
        wanted = set((kind or "").split())
        return [n for n in self.walk() if n.name == name and wanted <= n.classes]

    @property
    def classes(self) -> set[str]:
        return set((self.attributes.get("class") or "").split())

    @property
    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def value(self, name: str) -> float:
        return float(self.attributes[name] or "nan")


class _Reader(HTMLParser):
    """Refuses elements that are closed out of order or not at all."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"<{tag}> repeats an attribute"
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().name == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(page: str) -> Node:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == [reader.root], "elements stay open"
    return reader.root


def answers_of(root: Node) -> Any:
    """Returns the answers that the page carries for the exception browser."""
    (script,) = (n for n in root.all("script") if n.attributes.get("id") == "answers")
    return json.loads(script.text)


def interval(estimate: float, width: float) -> dict[str, float]:
    return {
        "estimate": estimate,
        "low": estimate - width,
        "high": estimate + width,
        "confidence": 0.95,
    }


def make_answer(text: str = "The answer is 4.") -> dict[str, Any]:
    exception = {"draft": " five", "target": " four", "regret": 0.75, "position": 3}
    return {
        "id": "7",
        "turns": ["What is 2 + 2?"],
        "reference": "4",
        "strict": {"text": text, "is_right": True, "extracted": "4"},
        "asd": {
            "pieces": [["The answer is", None], [" five", exception], [".", None]],
            "is_right": False,
            "extracted": "5",
            "spent": 0.75,
        },
    }


def make_task(number: int = 0, *, is_graded: bool = True) -> dict[str, Any]:
    change = (number - 3) / 100
    accuracy = {
        "strict": interval(0.6, 0.02),
        "asd": interval(0.6 + change, 0.02),
        "difference": interval(change, 0.015),
        "p_value": 0.2,
        "both_right": 50,
        "only_strict": 4,
        "only_asd": 3,
        "both_wrong": 43,
    }
    overlap = {"strict": interval(0.3, 0.01), "asd": interval(0.31, 0.01)}
    return {
        "num": 100,
        "is_graded": is_graded,
        "accuracy": accuracy if is_graded else None,
        "overlap_not_quality": None if is_graded else overlap,
        "length": {"strict_mean": 200.0, "asd_mean": 202.0, "change_percent": interval(1, 2)},
        "divergence": 0.9,
        "stops": {
            "strict": {"stop": 90, "length": 10},
            "asd": {"stop": 91, "length": 9},
            "earlier": 12,
            "later": 10,
        },
        "exceptions": {
            "per_answer": 7.5,
            "regret_per_answer": 4.5,
            "exhausted_share": 0.1,
            "places": [10, 20, 5, 0, 40, 3, 8, 9, 1, 2],
            "spent_over_answer": [i / 20 for i in range(1, 11)],
        },
        "acceptance": {
            "strict": {
                "tokens_per_forward": interval(3.4, 0.1),
                "by_position": [0.9 - i / 10 for i in range(7)],
            },
            "asd": {
                "tokens_per_forward": interval(3.9, 0.1),
                "by_position": [0.95 - i / 10 for i in range(7)],
            },
        },
        "throughput": {
            "gain_percent": interval(2.0 + number, 1.0),
            "drift_percent": -0.5,
            "valid": True,
            "reasons": [],
        },
        "worst": [make_answer()],
    }


def make_point(rule: str, speed: float, quality: float, **more: Any) -> dict[str, Any]:
    point = {"rule": rule, "options": {}, "is_frozen": False, "certified": True}
    return point | {"speed": interval(speed, 0.05), "quality": interval(quality, 0.01)} | more


def make_study() -> dict[str, Any]:
    """Returns a study of seven tasks, of which two are not graded."""
    tasks = {
        name: make_task(number, is_graded=name not in ("mt_bench", "summaries"))
        for number, name in enumerate(TASKS)
    }
    realised = {"value_scheme": "realised", "budget": 8}
    return {
        "run": {"command": "python -m x", "commit": "abc", "versions": {"jax": "0.11"}},
        "controls": {"budget": 8, "gate": 0.5, "block_cap": 2, "status": "frozen"},
        "tasks": tasks,
        "mean": {"gain_percent": interval(5, 1), "accuracy_difference": interval(-0.002, 0.005)},
        "frontier": [
            make_point("autoregressive", 1.0, 0.70),
            make_point("strict", 3.4, 0.70),
            make_point("asd", 3.8, 0.70, options={"value_scheme": "remaining"}),
            make_point("asd", 3.9, 0.71, options=realised, is_frozen=True),
            make_point("mars", 3.7, 0.65, certified=False),
            make_point("fly", 4.2, 0.66, certified=False),
        ],
        "frontier_units": {"speed": "tokens a forward", "quality": "share right"},
    }
