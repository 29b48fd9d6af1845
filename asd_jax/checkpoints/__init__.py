"""Bytes on disk to named tensors. Knows file formats, and no model."""
