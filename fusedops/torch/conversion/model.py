"""Converting a model module by module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch

from fusedops import report as reports
from fusedops.torch.conversion.counterparts import counterpart, is_known, original
from fusedops.torch.conversion.hf.layer import UnknownClass
from fusedops.torch.nn.layer import FusedLayer

_Model = TypeVar("_Model", bound=torch.nn.Module)

_SERVED = "torch's own kernel serves as well"
_OF_NORMS = "only its norms have counterparts"
_KEPT: dict[type, str] = {
    torch.nn.GELU: _SERVED,
    torch.nn.MultiheadAttention: "its attention is a kernel of torch's own",
    torch.nn.ReLU: _SERVED,
    torch.nn.SiLU: _SERVED,
    torch.nn.Sigmoid: _SERVED,
    torch.nn.Tanh: _SERVED,
    torch.nn.TransformerDecoderLayer: _OF_NORMS,
    torch.nn.TransformerEncoderLayer: _OF_NORMS,
}


class Report(reports.Report):
    noun = "modules"

    def __init__(self, model: torch.nn.Module) -> None:
        name = type(model).__name__
        super().__init__(name)
        self.names = {module: path or name for path, module in model.named_modules()}

    def is_container(self, thing: Any) -> bool:
        return next(thing.children(), None) is not None

    def name_of(self, thing: Any) -> str:
        return self.names[thing]


def convert(model: _Model, verbose: bool = True) -> _Model:
    """Converts every module of a model that fusedops knows to its kernels, and prints which ones.

    A module changes in place, to a subclass of its own class that computes the same and adds no state: parameters,
    buffers, state-dict keys, hooks, devices, the optimizer's references and all references to modules stay valid. A
    subclass of a known class is left alone, because it may compute something else. A second conversion does nothing
    more.

    Known are `LayerNorm`, `RMSNorm`, `Softmax` and `CrossEntropyLoss` of torch.nn, and the modules of Hugging Face's
    transformers that `fusedops.torch.conversion.hf` lists: their norms, MLPs, rotary embedding, residual connections
    and losses. The model may be wrapped, for example by DistributedDataParallel or torch.compile; compiled code is
    compiled again. `fully_shard` makes subclasses: convert a model before it is sharded.

    Only modules are converted, not functions: a call of torch.nn.functional within a `forward` stays as it is. The
    classes of transformers keep their names and modules, so that `save_pretrained` and `isinstance` work as before.

    TorchScript and `torch.fx.symbolic_trace` need a model that is not converted; torch.compile and torch.export take
    either. If you replace a function in a module of transformers, such as its `eager_attention_forward`, do so before
    the first model with that attention is converted.

    A converted module can be pickled and copied. To load it without fusedops, `revert` it before `torch.save`. A state
    dict is the same in either case.

    Args:
        model: any module.
        verbose: whether to print what was replaced, what was not, and why.

    Returns:
        The same model.

    Raises:
        TypeError: it is not a torch.nn.Module.
    """
    report = Report(_checked("convert", model))
    modules = list(model.modules())
    # Those within others come first: what a block can fuse depends on what it is made of.
    rest = [module for module in reversed(modules) if not _convert(module, report)]
    computed = _computed(modules)
    for module in rest:
        if module not in computed:
            _explain(module, report)
    _forget_compiled(modules)
    if verbose:
        print(report)
    return model


def revert(model: _Model) -> _Model:
    """Undoes `convert`: gives every converted module its original class.

    Layers of fusedops that replace no layer of torch or transformers, such as `AddRMSNorm`, stay. So do modules that
    `fully_shard` or `torch.nn.utils.parametrize` made a subclass of after the conversion.

    Args:
        model: any module.

    Returns:
        The same model.

    Raises:
        TypeError: it is not a torch.nn.Module.
    """
    modules = list(_checked("revert", model).modules())
    for module in modules:
        kind = original(type(module))
        if kind:
            module.__class__ = kind
    _forget_compiled(modules)
    return model


def _checked(function: str, model: _Model) -> _Model:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"fusedops.torch.{function}: model must be a torch.nn.Module; got {type(model)}")
    return model


def _convert(module: torch.nn.Module, report: Report) -> bool:
    """Whether there was something to do or to say."""
    kind = type(module)
    if isinstance(module, FusedLayer):
        reason = module.why_not()
        if reason:
            report.keep(module, reason)
        else:
            report.find(module, _condition(module))
        return True
    if not is_known(kind):
        return False
    reason = _become_counterpart(module)
    if reason:
        module.__class__ = kind
        report.keep(module, reason)
    else:
        report.replace(module, kind, getattr(module, "mixin", type(module)), _condition(module))
    return True


def _become_counterpart(module: Any) -> str | None:
    """Gives the module the class of its counterpart; the reason, if there is one, why it must not keep it."""
    if "forward" in vars(module):
        return "its forward is an attribute of its own, which somebody has set"
    try:
        module.__class__ = counterpart(type(module))
        reason: str | None = module.why_not()
        return reason
    except UnknownClass as error:
        return str(error)
    except (ImportError, AttributeError) as error:
        return f"this version of transformers is not known: {error}"


def _forget_compiled(modules: Iterable[torch.nn.Module]) -> None:
    """Before torch 2.13, what was compiled for a module is not compiled anew when the module's class changes."""
    # torch.compile(module) holds it as _orig_mod; module.compile() leaves _compiled_call_impl. To ask for the class of
    # the former would import torch's compiler, which takes seconds.
    if any(hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in modules):
        torch.compiler.reset()


def _condition(module: torch.nn.Module) -> str:
    """What it depends on whether the kernel computes a module that is ours, if only its input will tell."""
    dim = module.dim if isinstance(module, torch.nn.Softmax) else None
    return "" if dim is None or dim < 0 else f"if dim {dim} is the last of its input"


def _computed(modules: Iterable[torch.nn.Module]) -> set[torch.nn.Module]:
    """The modules whose work the kernel of a module around them does as well."""
    ours = [module for module in modules if isinstance(module, FusedLayer) and not module.why_not()]
    return {getattr(module, name) for module in ours for name in getattr(module, "computes", ())}


def _explain(module: torch.nn.Module, report: Report) -> None:
    """Says of a module that is not known why it is kept, if there is more to say than that."""
    kind = type(module)
    known = next((base for base in kind.__mro__ if is_known(base)), None)
    if isinstance(module, torch.jit.ScriptModule):
        report.keep(module, "TorchScript has compiled it")
    elif known and any(base.__name__ == "FSDPModule" for base in kind.__mro__):
        report.keep(module, "sharded by fully_shard: convert the model before")
    elif known:
        report.keep(module, reports.subclass_of(known.__name__))
    elif kind in _KEPT:
        report.keep(module, _KEPT[kind])
    else:
        report.ignore(module)
