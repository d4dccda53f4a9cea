"""The base of the optimizers: a step calls operators for supported groups, and torch's own step for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusedops.torch.internals import by_device_and_dtype, is_distributed
from fusedops.torch.operators import OPERATORS

Group = dict[str, Any]

_DTYPES = {torch.float32, torch.float64, torch.float16, torch.bfloat16}


@dataclass
class Update:
    """The call of an operator for some parameters of one group, device and dtype."""

    operator: Callable[..., None]
    params: list[torch.Tensor]
    grads: list[torch.Tensor]
    states: list[list[torch.Tensor]]
    lr: Any
    options: dict[str, Any]
    finish: Callable[[], None] = field(default=lambda: None)  # stores new states after the call


class FusedOptimizer(torch.optim.Optimizer):
    """The first base of an optimizer; torch's class is the second."""

    param_groups: list[Group]
    max_grad_norm: float | None = None

    def __init__(self, *args: Any, max_grad_norm: float | None = None, **kwargs: Any) -> None:
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"{self._title}: max_grad_norm must be above 0; got {max_grad_norm}")
        super().__init__(*args, **kwargs)
        self.max_grad_norm = max_grad_norm

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "max_grad_norm": self.max_grad_norm}

    def is_covered(self, group: Group) -> bool:
        """True if an operator supports the group's options."""
        raise NotImplementedError

    def updates(self, group: Group, params: list[torch.Tensor], grads: list[Any]) -> list[Update]:
        """The calls for parameters of one device and dtype and their gradients."""
        raise NotImplementedError

    @property
    def _title(self) -> str:
        return f"fusedops.torch.optim.{type(self).__name__}"

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return all(map(self._is_ours, self.param_groups))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        """torch's classes set it for `fused=True`."""

    def _is_ours(self, group: Group) -> bool:
        # One parameter is enough: torch refuses groups on several kinds of devices, too.
        return self.is_covered(group) and all(p.device.type in ("cpu", "cuda") for p in group["params"][:1])

    @torch.compiler.disable  # torch.compile breaks its graph here: a traced step would be another implementation
    def step(self, closure: Any = None) -> Any:
        """Updates all parameters that have gradients.

        Args:
            closure: recomputes the loss and returns it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            ours = [group for group in self.param_groups if self._is_ours(group)]
            others = [group for group in self.param_groups if not any(group is one for one in ours)]
            parts = [(group, *part) for group in ours for part in by_device_and_dtype(*_with_gradients(group))]
            for _, params, _ in parts:  # checks all before it updates any
                self._check_dtype(params[0])
            updates = [update for group, params, grads in parts for update in self.updates(group, params, grads)]
            if others or len(updates) > 1:
                self._check_gradients(updates)
            try:
                clip = self._clip(updates, others)
                if others:
                    self._plain_step(others)
                self._run(updates, clip)
            except (RuntimeError, TypeError):
                self._check_gradients(updates)  # for the same error as with several calls
                raise
        return loss

    def _name(self, p: torch.Tensor) -> str:
        """A parameter's name in errors."""
        places = ((g, i, x) for g, group in enumerate(self.param_groups) for i, x in enumerate(group["params"]))
        return next(f"parameter {i} of group {g}" for g, i, x in places if x is p)

    def _check_dtype(self, p: torch.Tensor) -> None:
        if p.dtype not in _DTYPES:
            expected = "parameters must be float64, float32, float16 or bfloat16"
            got = str(p.dtype).removeprefix("torch.")
            raise RuntimeError(f"{self._title}: {expected}; got {got} for {self._name(p)}")

    def _check_gradients(self, updates: Sequence[Update]) -> None:
        for update in updates:
            for p, grad in zip(update.params, update.grads, strict=True):
                if grad.layout is not torch.strided:
                    got = str(grad.layout).removeprefix("torch.")
                    raise RuntimeError(f"{self._title}: gradients must be dense; got {got} for {self._name(p)}")
                if p.shape != grad.shape or p.device != grad.device or p.dtype != grad.dtype:
                    expected = f"{tuple(p.shape)}, {p.dtype} on {p.device}"
                    got = f"{tuple(grad.shape)}, {grad.dtype} on {grad.device}"
                    raise RuntimeError(f"{self._title}: a gradient must be like {self._name(p)}, {expected}; got {got}")

    def _clip(self, updates: Sequence[Update], others: Sequence[Group]) -> torch.Tensor | None:
        """The factor that clips the norm of all gradients to `max_grad_norm`, or None."""
        if self.max_grad_norm is None:
            return None
        rest = [p.grad for group in others for p in group["params"] if p.grad is not None]
        grads = [grad for update in updates for grad in update.grads]
        if rest or any(grad is not local(grad) for grad in grads):
            by_mesh: dict[Any, list[torch.Tensor]] = {}
            for grad in (*rest, *grads):
                by_mesh.setdefault(getattr(grad, "device_mesh", None), []).append(grad)
            norms = [whole(torch.nn.utils.get_total_norm(some)) for some in by_mesh.values()]
        else:
            norms = [OPERATORS.global_norm(update.grads) for update in updates]
        if not norms:
            return None
        norm = torch.linalg.vector_norm(torch.stack([x.to(norms[0].device, norms[0].dtype) for x in norms]))
        if (scale := self._scaler_tensor("grad_scale")) is not None:
            norm = norm / scale.to(norm.device)
        clip = (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)  # as in torch.nn.utils.clip_grad_norm_
        for grad in rest:
            grad.mul_(clip.to(grad.device))
        return clip

    def _run(self, updates: Sequence[Update], clip: torch.Tensor | None) -> None:
        given = {
            "grad_scale": self._scaler_tensor("grad_scale"),
            "found_inf": self._scaler_tensor("found_inf"),
            "clip": clip,
        }
        moved: dict[tuple[Any, ...], torch.Tensor] = {}

        def placed(value: torch.Tensor | None, p: torch.Tensor) -> torch.Tensor | None:
            """The value on the device and in the compute dtype of p, moved only once."""
            if value is None:
                return None
            dtype = torch.float64 if p.dtype == torch.float64 else torch.float32
            key = (id(value), p.device, dtype)
            if key not in moved:
                moved[key] = value.to(p.device, dtype, non_blocking=True)
            return moved[key]

        for update in updates:
            first = update.params[0]
            lists = [update.params, update.grads, *update.states]
            if {*map(type, update.params)} != {torch.nn.Parameter}:
                lists = [[*map(local, x)] for x in lists]
            on_device = isinstance(update.lr, torch.Tensor) and update.lr.device.type != "cpu"
            lr = placed(update.lr, first) if on_device else float(update.lr)
            update.operator(lists, lr, [placed(value, first) for value in given.values()], update.options)
            update.finish()

    def _scaler_tensor(self, name: str) -> torch.Tensor | None:
        """An attribute that torch.amp.GradScaler sets during a step."""
        return getattr(self, name, None)

    def _plain_step(self, groups: list[Group]) -> None:
        """torch's own step, for some of the groups."""
        # Without step hooks, with which torch wraps the method of each class that has an instance.
        theirs = super().step
        method = theirs.__func__
        while getattr(method, "hooked", False):
            method = method.__wrapped__
        own = self.param_groups
        self.param_groups = groups
        try:
            method(self)
        finally:
            self.param_groups = own


def _with_gradients(group: Group) -> tuple[list[torch.Tensor], list[Any]]:
    """The parameters that have gradients, and their gradients."""
    params = group["params"]
    grads = [p.grad for p in params]
    found = [grad for grad in grads if grad is not None]
    if len(found) < len(grads):
        params = [p for p, grad in zip(params, grads, strict=True) if grad is not None]
    if {*map(type, params)} == {torch.nn.Parameter}:
        return params, found
    return params, [_placed(grad, p) if is_distributed(p) else grad for p, grad in zip(params, found, strict=True)]


def _placed(grad: Any, p: Any) -> Any:
    """A DTensor's gradient with the parameter's placements. It may be a partial sum otherwise."""
    if not is_distributed(grad) or grad.placements == p.placements:
        return grad
    return grad.redistribute(p.device_mesh, p.placements)


def local(x: torch.Tensor) -> torch.Tensor:
    """The local shard of a DTensor; other tensors unchanged."""
    return x if type(x) in (torch.Tensor, torch.nn.Parameter) or not hasattr(x, "to_local") else x.to_local()


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x
