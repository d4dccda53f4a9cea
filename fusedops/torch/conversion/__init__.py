"""`fusedops.torch.convert` switches a model to fused kernels, `revert` switches it back.

Conversion changes only the class of a module: `module.__class__` becomes a subclass of the original class, without
state of its own. For torch.nn's modules this is the layer of the same name in `fusedops.torch.nn`. For modules of
Hugging Face's transformers it combines the module's own class with a mixin of `hf/` that has the faster `forward`.
`sequential.py` does the same for torch.nn.Sequential and its subclasses.

A class is recognized by the code of its `forward`, not by its name: `hf/forms/` is the catalogue of known code, and
`source.py` compares.

The attention of transformers' models is selected by a name in their configs: `hf/implementation.py` changes the name,
`hf/attention.py` and `hf/masks.py` implement it. `hf/deferred.py` converts attentions with scores in their own code.

Most new families of models need no work, since they copy code of others. If a module is skipped, add its `forward` as a
form to the matching file of `hf/forms/`, with the mixin's names of attributes. If no mixin computes it, write one in
the matching file of `hf/`; `hf/layer.py` documents the interface. Then add the family to
`tests/helpers/hugging_face.py`: the suite in `tests/torch/test_convert_families.py` runs on all families in it.
"""

from __future__ import annotations

from typing import TypeVar

import torch

from fusedops import conversion
from fusedops.torch import distributed, internals
from fusedops.torch.conversion import hf
from fusedops.torch.conversion.counterparts import Modules
from fusedops.torch.conversion.functions import OwnForward
from fusedops.torch.conversion.hf import implementation

__all__ = ["convert", "revert"]

_Model = TypeVar("_Model", bound=torch.nn.Module)


def convert(model: _Model, verbose: bool = True, *, functions: bool = False, fuse_loss: bool = False) -> _Model:
    """Converts every module of a model that fusedops knows to its kernels, and prints a report.

    A module changes in place, to a subclass of its own class that computes the same and adds no state: parameters,
    buffers, state-dict keys, hooks, devices and all references to modules and parameters stay valid. A second
    conversion changes nothing.

    Known are `LayerNorm`, `RMSNorm`, `Softmax`, `Dropout`, `MultiheadAttention`, `CrossEntropyLoss`,
    `TransformerEncoderLayer` and `TransformerDecoderLayer` of torch.nn, and every class with a `forward` whose code is
    that of a norm, a gated or dense MLP, an attention with rotary embedding, a residual block, a mixture's experts or a
    model with a loss in the catalogue `fusedops.torch.conversion.hf.forms`, which is that of Hugging Face's
    transformers and of models that copy it; CLIP's QuickGELU; `Linear` with a million weights or more whose inputs or
    outputs are no multiple of 8, such as the head of an odd vocabulary, in 16 bits on a GPU, in code that is not
    compiled; and `Sequential`, with its subclasses that inherit its `forward`, where a `Linear` and the activation
    after it become one `linear`. Names of classes, attributes and variables, comments and annotations may differ from
    the catalogue; operations, constants, dtypes and their order may not. A class that differs is skipped; if most of
    its code is that of a form, or its name ends with Norm or MLP, the report has the first different line. A class
    without a source file is skipped, and so is a subclass of any other known class that has no `forward` of its own,
    because it may compute something else.

    A model of transformers whose config says `sdpa` or `eager` gets `fusedops.torch.attention`, by a name in that
    config instead of a class, and smaller masks, where all of its attentions fit the kernel. Models that share the
    config get it, too. An attention of transformers whose own code has a softmax between two products runs that code
    without computing the scores and their softmax, which it then returns only for `output_attentions`. Calls that the
    kernel does not support, such as those with `output_attentions`, go to transformers' own attention. Dropout has the
    same rate, but drops other elements. Packed sequences, in `position_ids` that restart, without a cache or mask, or
    by `cu_seq_lens_q` and `cu_seq_lens_k`, are computed by `attention_varlen`, or by `attention` with a mask. A model
    that counts its positions itself is not searched for them if it gets no `position_ids`.

    The model may be wrapped, for example by DistributedDataParallel or torch.compile; compiled code is compiled again.
    `fully_shard` makes subclasses: convert a model before it is sharded.

    In a known block, a dropout before a residual connection is computed in the pass of the sum, or of the sum and its
    norm. Its seed comes from torch's generator, but with the same seed it drops other elements than torch; the report
    says so.

    With `functions=True`, calls of torch.nn.functional's `cross_entropy`, `layer_norm`, `rms_norm`, `softmax` and
    `scaled_dot_product_attention` in the code of a module's own `forward` go to fusedops as well, if they compute the
    same: in the module's dtype, over the last dimension, and attention where causality finds as many keys as queries.
    Other calls, and calls in functions or methods that `forward` calls, go to torch. The new class has a copy of the
    code with copied global variables, so later changes of variables in its Python module have no effect.

    With `fuse_loss=True`, a causal language model of transformers whose head is a plain linear layer computes its loss
    from the last hidden states, while it is in training mode and gets labels. A softcap of the logits is supported. A
    model that uses its logits otherwise, or whose head is replaced by an adapter or a quantizer, returns logits as
    before, and the report says why. A model that is converted already must be reverted first.

    The classes of transformers keep their names and modules, so that `save_pretrained` and `isinstance` work as before.

    torch.compile, torch.export, `torch.fx.symbolic_trace` and `torch.jit.trace` take a converted model.
    torch.onnx.export gets torch's own operators from its modules, since ONNX has no others. `torch.jit.script` needs a
    model that is not converted: `revert` it. If you replace a function in a module of transformers, such as its
    `eager_attention_forward`, do so before the first model with that attention is converted.

    A converted module can be pickled and copied. To load it without fusedops, `revert` it before `torch.save`. A state
    dict is the same in either case.

    Args:
        model: any module.
        verbose: True to print replaced and skipped modules, with reasons. A skipped class has its share of the model's
            parameters; `explain` measures its share of a step's time.
        functions: True to replace functions in the `forward` of modules of unknown classes, too.
        fuse_loss: True if transformers' causal language models compute the loss by `linear_cross_entropy` in training.
            With labels, they then return None for logits. The report has the memory that this saves.

    Returns:
        The same model. If nothing in it could be converted, there is a warning.

    Raises:
        TypeError: it is not a torch.nn.Module.
    """
    reported(model, functions, fuse_loss).publish("fusedops.torch.convert", verbose)
    return model


def reported(model: torch.nn.Module, functions: bool = False, fuse_loss: bool = False) -> conversion.Report:
    """Converts a model, and returns the report that `convert` prints."""
    modules = list(_checked("convert", model).modules())
    rules = Modules(model, functions, fuse_loss)
    report = conversion.Report(rules, type(model).__name__)
    # Submodules first: a block can fuse only what its converted parts support.
    conversion.convert(modules[::-1], rules, report)
    for change in implementation.convert(modules):
        (report.notes if change.reason else report.further).append(str(change))
    report.notes += hf.notes_on_losses(modules, fuse_loss)
    report.notes += distributed.notes_on_shards(model.parameters())
    functions_of = (module.functions for module in modules if isinstance(module, OwnForward))
    if any("scaled_dot_product_attention" in names for names in functions_of) or report.has_replaced(torch.nn.Dropout):
        report.notes.append(conversion.OTHER_MASKS)
    internals.forget_compiled(modules)
    return report


def revert(model: _Model) -> _Model:
    """Undoes `convert`: gives every converted module its original class.

    Layers of fusedops that replace no layer of torch or transformers, such as `AddRMSNorm`, stay. So do those with an
    option that torch's lack, such as a z-loss, and modules that `fully_shard` or `torch.nn.utils.parametrize` made a
    subclass of after the conversion.

    Args:
        model: any module.

    Returns:
        The same model.

    Raises:
        TypeError: it is not a torch.nn.Module.
    """
    modules = list(_checked("revert", model).modules())
    conversion.revert(modules, Modules(model))
    implementation.revert(modules)
    internals.forget_compiled(modules)
    return model


def _checked(function: str, model: _Model) -> _Model:
    if not isinstance(model, torch.nn.Module):
        raise conversion.no_model(f"fusedops.torch.{function}", "a torch.nn.Module", model)
    return model
