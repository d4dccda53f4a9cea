"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from fusedops.arguments import given
from fusedops.torch.operators import OPERATORS
from fusedops.torch.optim.fused import FusedOptimizer, Group, Update, local

_NARROW = (torch.float16, torch.bfloat16)
_WIDE_STATES = ("master_param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_NEEDED = "master_weights needs numbers as betas, no differentiable, and parameters on CPUs or CUDA GPUs"


def _adamw(lists: Sequence[list[torch.Tensor]], lr: Any, scalars: Sequence[Any], options: dict[str, Any]) -> None:
    params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, masters = lists
    moments = (exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
    OPERATORS.adamw(params, grads, *moments, steps, masters, lr, None, *scalars, **options)


class _AdamStep(FusedOptimizer):
    master_weights = False

    def __init__(self, *args: Any, master_weights: bool = False, **kwargs: Any) -> None:
        self.master_weights = master_weights  # add_param_group needs it
        # Parameters with loaded copies, which may be stale.
        self._unchecked: set[torch.Tensor] = set()
        super().__init__(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "master_weights": self.master_weights}

    def add_param_group(self, param_group: Group) -> None:
        super().add_param_group(param_group)
        if self.master_weights and not self.is_covered(self.param_groups[-1]):
            self.param_groups.pop()
            raise ValueError(f"{self._title}: {_NEEDED}")

    def is_covered(self, group: Group) -> bool:
        betas_are_numbers = not any(isinstance(beta, torch.Tensor) for beta in group["betas"])
        return betas_are_numbers and not group["differentiable"]

    _steps_are_placed = False  # a class attribute, for an optimizer of torch whose class was changed

    def updates(self, group: Group, params: list[torch.Tensor], grads: list[Any]) -> list[Update]:
        if not self._steps_are_placed:
            self._place_steps()
        has_masters = self.master_weights and params[0].dtype in _NARROW
        if has_masters:
            self._check_masters(params)
        wanted = {"max_exp_avg_sq": group["amsgrad"], "master_param": has_masters}
        more = [name for name, is_wanted in wanted.items() if is_wanted]
        states: list[Any] = [*map(self.state.get, params)]
        new_states: dict[torch.Tensor, dict[str, Any]] = {}
        if not all(states) or any(name not in state for name in more for state in states):
            new_states = {p: self._initialized_state(p, has_masters, group["amsgrad"]) for p in params}
            states = [new_states[p] for p in params]
        beta1, beta2 = group["betas"]
        options = {
            "beta1": float(beta1),
            "beta2": float(beta2),
            "eps": float(group["eps"]),
            "weight_decay": float(group["weight_decay"]),
            "decoupled": bool(group.get("decoupled_weight_decay", False)),
            "maximize": bool(group["maximize"]),
        }
        names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step", "master_param")
        lists = [[state[name] for state in states] if wanted.get(name, True) else [] for name in names]

        def keep() -> None:
            self.state.update(new_states)
            if self.master_weights and not has_masters:  # no longer 16-bit: copies are stale
                for p in params:
                    self.state[p].pop("master_param", None)

        return [Update(_adamw, params, grads, lists, group["lr"], options, keep)]

    def _initialized_state(self, p: torch.Tensor, has_master: bool, amsgrad: bool) -> dict[str, Any]:
        """A copy of a parameter's state, with missing entries added. It replaces the state after the step succeeds."""
        state = dict(self.state.get(p, {}))
        if not state:
            dtype = torch.float32 if has_master else p.dtype
            state["step"] = torch.zeros((), dtype=torch.float32, device=local(p).device)
            state["exp_avg"] = torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)
        if has_master and "master_param" not in state:
            state["master_param"] = p.detach()
            for name in state.keys() & _WIDE_STATES:
                state[name] = state[name].float()
        if amsgrad and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = torch.zeros_like(state["exp_avg_sq"], memory_format=torch.preserve_format)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        given = self.__dict__.pop("_given", None)
        if self.master_weights and given is not None:
            self._widen(given)
        self._unchecked = {p for p, found in self.state.items() if "master_param" in found}
        self._place_steps()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, which rounds states to the parameter's dtype. With master weights they stay float32."""

        def keep(_: Any, given: dict[str, Any]) -> None:
            self._given = given  # after all other hooks; __setstate__ itself gets rounded states

        hook = self.register_load_state_dict_pre_hook(keep)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
            self.__dict__.pop("_given", None)

    def _widen(self, given: dict[str, Any]) -> None:
        places = [i for group in given["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(places, params, strict=True):
            found = given["state"].get(i, {})
            if p.dtype in _NARROW and "master_param" in found:
                wide = {name: found[name] for name in _WIDE_STATES if name in found}
                self.state[p] |= {name: x.to(p.device, torch.float32, copy=True) for name, x in wide.items()}

    def _check_masters(self, params: Sequence[torch.Tensor]) -> None:
        """Drops loaded copies that do not round to their parameter, since it was updated without them."""
        unchecked = [p for p in params if p in self._unchecked] if self._unchecked else []
        doubtful = [p for p in unchecked if "master_param" in self.state.get(p, {})]
        if not doubtful:
            return
        same = [(local(self.state[p]["master_param"]).to(p.dtype) == local(p)).all() for p in doubtful]
        for p, is_same in zip(doubtful, torch.stack(same).tolist(), strict=True):  # waits for the device, once
            if not is_same:
                del self.state[p]["master_param"]
        self._unchecked.difference_update(doubtful)

    def _plain_step(self, groups: list[Group]) -> None:
        if self.master_weights and any(p.dtype in _NARROW for group in groups for p in group["params"]):
            raise RuntimeError(f"{self._title}: {_NEEDED}")
        super()._plain_step(groups)

    def _place_steps(self) -> None:
        """Moves each step to its parameter's device. torch has it there only with `fused` or `capturable`."""
        for group in filter(self._is_ours, self.param_groups):
            for p in group["params"]:
                if isinstance(step := self.state.get(p, {}).get("step"), torch.Tensor):
                    self.state[p]["step"] = step.to(local(p).device, torch.float32)
        self._steps_are_placed = True

    def state_dict(self) -> dict[str, Any]:
        """As in torch, with each step on the CPU unless `fused` or `capturable` is set."""
        found = super().state_dict()
        for group in found["param_groups"]:
            if group["fused"] or group["capturable"]:
                continue
            with_step = [i for i in group["params"] if "step" in found["state"].get(i, {})]
            elsewhere = [i for i in with_step if found["state"][i]["step"].device.type != "cpu"]
            for device in {found["state"][i]["step"].device for i in elsewhere}:
                places = [i for i in elsewhere if found["state"][i]["step"].device == device]
                steps = torch.stack([found["state"][i]["step"] for i in places]).cpu()
                for i, step in zip(places, steps, strict=True):
                    found["state"][i] = {**found["state"][i], "step": step.clone()}
        return found


class Adam(_AdamStep, torch.optim.Adam):
    """torch.optim.Adam, with all parameters updated in one pass; see `AdamW`.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        >>> optimizer = fusedops.torch.optim.Adam([weight], lr=0.5)
        >>> (weight**2).sum().backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [0.5, 1.5]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        master_weights: bool = False,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(**given(locals()))


class AdamW(_AdamStep, torch.optim.AdamW):
    """torch.optim.AdamW, with all parameters updated in one pass.

    Parameter groups, hooks, closures and state dicts are torch's: either class loads the other's. A step takes a few
    launches for the parameters of a device and dtype, as with `fused=True`, and never waits for the GPU, so CUDA graphs
    capture it with or without `capturable`. With a torch.amp.GradScaler, the kernel unscales gradients and skips the
    step if needed; the gradients themselves do not change. States have the dtype of their parameter, as in torch; those
    of 16-bit parameters may also be float32. Arithmetic is in float32, or in float64 for float64.

    With `master_weights`, each 16-bit parameter has a float32 copy, `master_param` in its state, made at its first
    step. The step updates this copy, with float32 states, and rounds it to the parameter, so updates smaller than the
    parameter's precision accumulate. The state takes 12 bytes per element instead of 4. The next step overwrites any
    other change of a parameter: after loading other weights, load their optimizer's state dict, too, or clear `state`.
    A loaded copy that does not round to its parameter is made anew.

    torch's own code, with the same result, updates groups with `differentiable`, with betas that are tensors, and on
    other devices than CPUs and CUDA GPUs. torch.compile breaks its graph at `step`, which runs as in eager code.

    Args:
        params, lr, betas, eps, weight_decay, ...: those of torch.optim.AdamW, in its order.
        master_weights: True to update float32 copies of 16-bit parameters.
        max_grad_norm: the norm to which the gradients of all parameters together are clipped, as by
            torch.nn.utils.clip_grad_norm_, at the cost of one more read of them; None: no clipping.

    Raises:
        ValueError: `master_weights` with a group that torch's own code updates.
        RuntimeError: a gradient is sparse, or differs from its parameter in shape, dtype or device; a parameter is
            complex; `master_weights` is set for a group that torch's own code updates; or there is no memory for new
            states. No parameter or state has changed then.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        >>> optimizer = fusedops.torch.optim.AdamW([weight], lr=0.5, weight_decay=0.0, max_grad_norm=1.0)
        >>> (weight**2).sum().backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [0.5, 1.5]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        master_weights: bool = False,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(**given(locals()))
