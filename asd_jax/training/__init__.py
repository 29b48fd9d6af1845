"""Distillation of drafters: answers of the target in, a checkpoint in the released layout out."""
