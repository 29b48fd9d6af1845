"""Command lines over `asd_jax`, one a file, and their configurations."""
