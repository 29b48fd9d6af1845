"""Drafters: who proposes tokens. Each is a `Drafter`: init, prefill, propose, commit."""
