"""Losses of a vocabulary that is divided over the processes of a group, on tensors that are no DTensors."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import fusedops.torch as fo
from fusedops.functions.common import Reduction
from fusedops.torch.distributed.agreement import description, differing_calls
from fusedops.torch.internals import is_distributed, uncompiled


@uncompiled
def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    group: dist.ProcessGroup,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    class_weight: Tensor | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    """`fusedops.torch.cross_entropy` of logits whose classes are divided over the processes of a group.

    Processes exchange four numbers for each row. No process has the logits of another one.

    Args:
        logits: float64, float32, float16 or bfloat16, [..., classes / processes]: those of this process. The classes
            are in the order of the processes.
        labels: int32 or int64, [...]: a class in [0, classes) for each row, or ignore_index. Equal in all processes.
        group: whose processes compute the loss together, by a backend for the device of logits.
        ignore_index, label_smoothing, reduction, z_loss: as in `fusedops.torch.cross_entropy`.
        class_weight: float32, [classes]: the weights of all classes. Equal in all processes.

    Returns:
        The loss over all classes, in every process.

    Gradient:
        That of the process's logits. The upstream gradient must be equal in all processes.

    Raises:
        ValueError: `group` does not contain this process, or has no backend for the device.
        RuntimeError: an argument has the wrong shape or dtype; on a CPU also: a label is neither a class nor
            ignore_index. In all processes: shapes, dtypes or options differ between them.

    Compiled code calls the function as it is, with a break of its graph. `fusedops.torch.cross_entropy`, called with
    DTensors, becomes part of the graph.

    Source: Shoeybi et al., "Megatron-LM", 2019.
    """
    options = {
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
        "reduction": reduction,
        "z_loss": z_loss,
    }
    logits, labels, class_weight = _placed(
        "cross_entropy", group, options, logits=(logits, -1), labels=(labels, None), class_weight=(class_weight, None)
    )
    return fo.cross_entropy(logits, labels, class_weight=class_weight, **options).to_local()  # type: ignore[attr-defined, arg-type]


@uncompiled
def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    group: dist.ProcessGroup,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    softcap: float = 0.0,
    transpose_weight: bool = True,
    class_weight: Tensor | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    """`fusedops.torch.linear_cross_entropy` with a weight whose classes are divided over the processes of a group.

    Processes exchange four numbers for each row, and in the backward the gradient of x. No process has all logits, nor
    at once those of its own classes.

    Args:
        x: [..., in], float64, float32, float16 or bfloat16. Equal in all processes.
        weight: [classes / processes, in], or [in, classes / processes] if `transpose_weight` is false: that of this
            process. The classes are in the order of the processes.
        labels: int32 or int64, [...]: a class in [0, classes) for each row of x, or ignore_index. Equal in all
            processes.
        bias: [classes / processes]: that of this process.
        group: whose processes compute the loss together, by a backend for the device of x.
        ignore_index, label_smoothing, reduction, softcap, transpose_weight, z_loss: as in
            `fusedops.torch.linear_cross_entropy`.
        class_weight: float32, [classes]: the weights of all classes. Equal in all processes.

    Returns:
        The loss over all classes, in every process.

    Gradient:
        That of x is the sum over the processes, in every process; those of weight and bias are the process's own. The
        upstream gradient must be equal in all processes.

    Raises:
        ValueError: `group` does not contain this process, or has no backend for the device.
        RuntimeError: an argument has the wrong shape or dtype; on a CPU also: a label is neither a class nor
            ignore_index. In all processes: shapes, dtypes or options differ between them.

    Compiled code calls the function as it is, with a break of its graph. `fusedops.torch.linear_cross_entropy`, called
    with DTensors, becomes part of the graph.

    Source: Wijmans et al., "Cut your losses in large-vocabulary language models", 2024; Shoeybi et al., "Megatron-LM",
    2019.
    """
    options = {
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
        "reduction": reduction,
        "softcap": softcap,
        "transpose_weight": transpose_weight,
        "z_loss": z_loss,
    }
    x, weight, labels, bias, class_weight = _placed_head(
        "linear_cross_entropy", group, options, x, weight, labels, bias, class_weight=class_weight
    )
    return fo.linear_cross_entropy(x, weight, labels, bias, class_weight=class_weight, **options).to_local()  # type: ignore[attr-defined, arg-type]


@uncompiled
def linear_log_prob(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    group: dist.ProcessGroup,
    temperature: float = 1.0,
    softcap: float = 0.0,
    ignore_index: int = -100,
    entropy: bool = False,
    transpose_weight: bool = True,
) -> tuple[Tensor, ...]:
    """`fusedops.torch.linear_log_prob` with a weight whose classes are divided over the processes of a group.

    Processes exchange four numbers for each row, with `entropy` five, and in the backward the gradient of x. No process
    has all logits, nor at once those of its own classes.

    Args:
        x, weight, labels, bias, group: as in `linear_cross_entropy`.
        temperature, softcap, ignore_index, entropy, transpose_weight: as in `fusedops.torch.linear_log_prob`.

    Returns:
        The results over all classes, in every process.

    Gradient:
        As in `linear_cross_entropy`. The upstream gradients must be equal in all processes.

    Raises:
        ValueError, RuntimeError: as in `linear_cross_entropy`.

    Compiled code calls the function as it is, with a break of its graph. `fusedops.torch.linear_log_prob`, called with
    DTensors, becomes part of the graph.

    Source: as of `linear_cross_entropy`.
    """
    options = {
        "temperature": temperature,
        "softcap": softcap,
        "ignore_index": ignore_index,
        "entropy": entropy,
        "transpose_weight": transpose_weight,
    }
    placed = _placed_head("linear_log_prob", group, options, x, weight, labels, bias)
    return tuple(y.to_local() for y in fo.linear_log_prob(*placed, **options))  # type: ignore[attr-defined, arg-type]


def _placed_head(
    function: str,
    group: dist.ProcessGroup,
    options: dict[str, Any],
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None,
    **whole: Tensor | None,
) -> list[Any]:
    """DTensors of a head's inputs, and of others that every process has whole."""
    return _placed(
        function,
        group,
        options,
        x=(x, None),
        weight=(weight, 0 if options["transpose_weight"] else 1),
        labels=(labels, None),
        bias=(bias, 0),
        **{name: (value, None) for name, value in whole.items()},
    )


def _placed(
    function: str, group: dist.ProcessGroup, options: dict[str, Any], **inputs: tuple[Tensor | None, int | None]
) -> list[Any]:
    """DTensors over the group, of tensors that are shards along a dimension or, without one, whole."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    given = {name: x for name, (x, _) in inputs.items() if x is not None}
    device = next((x.device for x in given.values() if isinstance(x, Tensor)), torch.device("cpu"))
    _check_group(function, group, device.type)
    # First, since an error in one process alone would leave the others waiting.
    _check_equal(function, group, device, options | {name: description(x) for name, x in given.items()})
    for name, x in given.items():
        if not isinstance(x, Tensor) or is_distributed(x):
            got = type(x).__name__
            raise TypeError(f"fusedops.distributed.{function}: {name} must be a plain tensor; got {got}")
    mesh = _mesh(group, device.type)
    return [
        None
        if x is None
        else DTensor.from_local(x, mesh, [Shard(dim % x.dim()) if dim is not None and x.dim() else Replicate()])
        for x, dim in inputs.values()
    ]


@functools.lru_cache(16)
def _mesh(group: dist.ProcessGroup, device: str) -> Any:
    return dist.device_mesh.DeviceMesh.from_group(group, device)


def _check_group(function: str, group: Any, device: str) -> None:
    sentence = f"fusedops.distributed.{function}: group must be"
    if not isinstance(group, dist.ProcessGroup):
        got = "a group without this process" if group == dist.GroupMember.NON_GROUP_MEMBER else type(group).__name__
        raise ValueError(f"{sentence} a torch.distributed.ProcessGroup of this process; got {got}")
    backends = dist.get_backend_config(group)
    if f"{device}:" not in backends:
        raise ValueError(f"{sentence} of a backend for {device}; got {backends}")


def _check_equal(function: str, group: dist.ProcessGroup, device: torch.device, call: dict[str, Any]) -> None:
    """Raises RuntimeError in all processes if one of them makes another call."""
    calls = differing_calls(group, device, call) or []
    for name in {name: None for each in calls for name in each}:
        values = [each.get(name) for each in calls]
        rank = next((i for i, value in enumerate(values) if value != values[0]), None)
        if rank is not None:
            raise RuntimeError(
                f"fusedops.distributed.{function}: {name} must be alike in all processes of group; "
                f"got {values[0]} in process 0 and {values[rank]} in process {rank}"
            )
