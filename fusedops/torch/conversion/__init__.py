"""One line to switch a model over, `fusedops.torch.convert`, and one to switch it back, `revert`.

A module is converted by its class alone: `module.__class__` becomes a subclass of the class that it had, without state
of its own. For torch.nn's modules that is the layer of the same name in `fusedops.torch.nn`; for those of Hugging
Face's transformers it is made of the module's own class and of a mixin in `hf/`, which has the faster `forward`.

How a family of models is added: list the classes of its modules in `hf/__init__.py`, each with the mixin that fits it.
Where none fits, write one in a file of `hf/`, one file for one idea; what it must have is said in `hf/layer.py`. Then
add the family to `tests/helpers/hugging_face.py`: the suite in `tests/torch/test_convert_families.py` runs on all that
are there.
"""

from __future__ import annotations

from typing import TypeVar

import torch

from fusedops import conversion
from fusedops.torch import internals
from fusedops.torch.conversion.counterparts import Modules

__all__ = ["convert", "revert"]

_Model = TypeVar("_Model", bound=torch.nn.Module)


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
    report = reported(model)
    if verbose:
        print(report)
    return model


def reported(model: torch.nn.Module) -> conversion.Report:
    """As `convert`, and what it would print, as an object."""
    modules = list(_checked("convert", model).modules())
    rules = Modules(model)
    report = conversion.Report(rules, type(model).__name__)
    # Those within others come first: what a block can fuse depends on what it is made of.
    conversion.convert(modules[::-1], rules, report)
    internals.forget_compiled(modules)
    return report


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
    conversion.revert(modules, Modules(model))
    internals.forget_compiled(modules)
    return model


def _checked(function: str, model: _Model) -> _Model:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"fusedops.torch.{function}: model must be a torch.nn.Module; got {type(model)}")
    return model
