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

from fusedops.torch.conversion.model import convert, revert

__all__ = ["convert", "revert"]
