"""Kernels for a GPU run where there is none, in Triton's interpreter."""

import os

import torch

# Triton looks at them when it is first imported, and so before any module of tests is.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# What it would choose anyway, with a warning.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
