"""The experts of transformers' mixtures, whose matrices are stacked in one tensor."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

import fusedops.torch as fo
from fusedops.conversion import UnknownClass
from fusedops.torch.conversion import source
from fusedops.torch.conversion.hf import internals
from fusedops.torch.conversion.hf.activations import fused_name, must_call, unfused_activation
from fusedops.torch.conversion.hf.forms import experts as forms
from fusedops.torch.conversion.hf.layer import HFLayer
from fusedops.torch.internals import before_tracing, is_watched
from fusedops.torch.nn.linear import unfused_product, unfused_weight

NAME = "fusedops"  # the `experts_implementation` that `registered_experts` computes
# transformers' own names, and ours. Another one is the choice of user code.
_IMPLEMENTATIONS = (None, "eager", "grouped_mm", "batched_mm", NAME)


class Experts(HFLayer):
    """A class with transformers' `use_experts_implementation`, whose code of the gate is known."""

    fixed: ClassVar[str | None] = None  # name of the activation in torch.nn.functional, if it is no attribute
    interleaved: ClassVar[bool] = False
    shift: ClassVar[float] = 0.0
    computes = ("activation",)

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        closure = getattr(vars(kind).get("forward"), "__closure__", None) or ()
        if not any(cell.cell_contents is internals.ALL_EXPERTS_FUNCTIONS for cell in closure):
            raise UnknownClass("its forward does not select one of transformers' implementations of experts")
        return {}

    def unfused(self) -> str | None:
        return self._chosen_by_user() or self.unfused_module(self)

    @classmethod
    def unfused_module(cls, module: Any) -> str | None:
        """The reason why the kernel does not support a module of the original or of this class, or None."""
        if not module.has_gate or module.has_post_expert_norm:
            return "its experts have no gate" if not module.has_gate else "a norm follows each expert"
        return unfused_activation(cls._activation(module))

    def _chosen_by_user(self) -> str | None:
        name = getattr(self.config, "_experts_implementation", None)
        if name in _IMPLEMENTATIONS:
            return None
        return f"experts_implementation is {name!r}, which was chosen by user code"

    def why_not(self, *inputs: Any) -> str | None:
        if not inputs:
            return super().why_not()
        x, _, weight = inputs
        return self._chosen_by_user() or self.unfused_call(self, x, weight)

    @classmethod
    def unfused_call(cls, module: Any, x: Tensor, weight: Tensor) -> str | None:
        """The reason why a module of the original or of this class calls other code for these inputs, or None."""
        if must_call(cls._activation(module)):
            return "its activation has hooks"
        if reason := unfused_product(x, module.gate_up_proj):
            return reason
        if weight.dtype not in (x.dtype, torch.float32):
            return f"the router's weights are {weight.dtype} beside an input of {x.dtype}"
        return None

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        if fused_name(self._activation(self)) is None or self.why_not(x, index, weight):
            return self.original.forward(self, x, index, weight)  # type: ignore[attr-defined]
        return self.compute(self, x, index, weight)

    @classmethod
    def compute(cls, module: Any, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        """The result of a module of the original or of this class."""
        name = fused_name(cls._activation(module))
        assert name is not None
        return fo.experts(
            x,
            index,
            weight,
            module.gate_up_proj,
            module.down_proj,
            activation=name,
            gate_up_bias=module.gate_up_proj_bias if module.has_bias else None,
            down_bias=module.down_proj_bias if module.has_bias else None,
            transpose_weight=not module.is_transposed,
            interleaved=cls.interleaved,
            limit=cls._attribute(module, "limit", 0.0),
            alpha=cls._attribute(module, "alpha", 1.0),
            shift=cls.shift,
        )

    @classmethod
    def _activation(cls, module: Any) -> Any:
        return getattr(functional, cls.fixed) if cls.fixed else cls._attribute(module, "activation")

    @classmethod
    def _attribute(cls, module: Any, role: str, default: Any = None) -> Any:
        return getattr(module, cls.names[role]) if role in cls.names else default


class ScaledMixture(HFLayer):
    """A mixture whose router scales the inputs of its experts, which transformers computes for every token.

    An input of 0 has the result 0 and no gradient, so that experts with a score of 0 can be left out.
    """

    computes = ("experts",)

    def unfused(self) -> str | None:
        for role in _FORMS:
            kind = type(self.part(role))
            if not _name(kind, _FORMS[role]):
                return f"its {role}, {kind.__name__}, has unknown code"
        return unfused_activation(self._of("experts", "activation"))

    def why_not(self, *inputs: Any) -> str | None:
        if not inputs:
            return super().why_not()
        if reason := self.unfused():
            return reason
        experts = self.part("experts")
        if is_watched(experts) or is_watched(self.part("router")) or must_call(self._of("experts", "activation")):
            return "its router or its experts have hooks, or a forward that user code has set"
        return unfused_weight(inputs[0], self._of("experts", "gate_up"))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        name = None if self.why_not(x) else fused_name(self._of("experts", "activation"))
        if name is None:
            return self.original.forward(self, x)  # type: ignore[attr-defined]
        x = x.reshape(-1, self.part("columns"))
        scores, logits = self.part("router")(x)
        score, index = scores.topk(self._of("router", "per_token"), -1)
        y = fo.experts(
            x[:, None] * score[..., None],
            index[..., None],
            torch.ones_like(score[..., None]),
            self._of("experts", "gate_up"),
            self._of("experts", "down"),
            activation=name,
            transpose_weight=False,
        )
        return self.part("shared")(x).add_(y.sum(1)), logits

    def _of(self, role: str, name: str) -> Any:
        """The attribute of a part that has this name in the part's form."""
        part = self.part(role)
        return getattr(part, _name(type(part), _FORMS[role], name))


_FORMS = {"router": "Llama4Router", "experts": "Llama4TextExperts"}  # classes of `forms`


@before_tracing
def _name(kind: type, known: str, attribute: str = "") -> str:
    """The name of an attribute, by its name in a class of `forms` with the same code; "" if the code differs."""
    names = _names(kind, known)
    return "" if names is None else names.get(attribute, known)


@functools.cache
def _names(kind: type, known: str) -> Mapping[str, str] | None:
    try:
        code, form = (source.of_method(each, "forward") for each in (kind, getattr(forms, known)))
    except source.NoSource:
        return None
    return dict(zip(form.attributes, code.attributes, strict=True)) if code == form else None
