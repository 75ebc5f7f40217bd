"""What `--backend` stands for: what carries messages between ranks, and on which device the dense half of each is.

Rows are in the memory of the CPU and travel from there, whatever the backend. With `nccl` every rank of a machine has the GPU of
its number there, for layers and their gradients.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from rowmill.errors import InvalidInput

CPU = torch.device("cpu")


def torch_backend(backend: str) -> str:
    """Its name in torch.distributed."""
    return "cpu:gloo,cuda:nccl" if backend == "nccl" else backend


def check_gpus(backend: str, local_ranks: int) -> None:
    """Raise for what so many ranks on this machine lack."""
    if backend != "nccl":
        return
    gpus = torch.cuda.device_count()
    if gpus < local_ranks:
        raise InvalidInput(
            f"--backend nccl takes a GPU for each rank: {local_ranks} ranks, {gpus} GPUs that torch can use here"
        )
    if not dist.is_nccl_available():
        raise InvalidInput(
            "--backend nccl: this build of torch has no NCCL; install one for CUDA, or give --backend gloo"
        )


def dense_device(backend: str, local_rank: int) -> torch.device:
    """Where the dense half of a rank is; a GPU becomes the one that this thread takes when it is told none."""
    if backend != "nccl":
        return CPU
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def device_name(device: torch.device) -> str:
    """What a report calls it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
