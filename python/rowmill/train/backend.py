"""The communication backend of `--backend`, and the device of the dense half of each rank.

Rows are in CPU memory and are sent from there with every backend. With `nccl`, local rank N of a machine uses GPU N for
the dense layers and their gradients.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from rowmill.errors import InvalidInput

CPU = torch.device("cpu")


def torch_backend(backend: str) -> str:
    """The backend string for `torch.distributed.init_process_group`."""
    return "cpu:gloo,cuda:nccl" if backend == "nccl" else backend


def check_gpus(backend: str, local_ranks: int) -> None:
    """Raise `InvalidInput` if `backend` needs GPUs or a torch build that this machine lacks."""
    if backend != "nccl":
        return
    gpus = torch.cuda.device_count()
    if gpus < local_ranks:
        raise InvalidInput(
            f"--backend nccl needs one GPU per rank, but this machine has {local_ranks} ranks and {gpus} GPUs that torch "
            "can use: start fewer ranks on it, or use --backend gloo"
        )
    if not dist.is_nccl_available():
        raise InvalidInput(
            "--backend nccl: this build of torch has no NCCL; install torch for CUDA, or use --backend gloo"
        )


def dense_device(backend: str, local_rank: int) -> torch.device:
    """The device of the dense half of a rank. A GPU also becomes torch's current device of this thread."""
    if backend != "nccl":
        return CPU
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def device_name(device: torch.device) -> str:
    """The name of a device in a report: the model of a GPU, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
