"""Benchmarks: each prints what it measures and writes one JSON file. See docs/benchmarks.md."""
