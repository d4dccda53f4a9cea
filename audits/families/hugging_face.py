"""The families of Hugging Face's transformers: the classes of each model type, and a small model."""

from __future__ import annotations

import functools
import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.models.auto import configuration_auto, modeling_auto

from audits.families.attending import attending
from audits.families.counting import ATTENTIONS, Entry, counted
from audits.families.kinds import kinds_of
from audits.families.shrinking import Shrink, small_config
from fusedops.torch.conversion import reported
from fusedops.torch.conversion.hf.positions import OwnPositions

# Preference among the classes of a model type: those with a loss and with most of the modules first.
_PREFERRED = (
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "IMAGE_TEXT_TO_TEXT",
    "MASKED_LM",
    "CAUSAL_LM",
    "CTC",
    "IMAGE_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "OBJECT_DETECTION",
    "SEMANTIC_SEGMENTATION",
)
_MAX_CLASSES = 3  # classes of a type that are tried
_MAX_PARAMETERS = 200e6  # of a model that is built with its default widths
_MAX_PARAMETERS_RELEASED = 4e9
_FEW_EXPERTS = 16  # number of experts if the model is too large with all of them
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")


_ROTARY = {"rope_type": "default", "rope_theta": 10000.0}
# Fields that depend on others by rules specific to the family.
_OPTIONS: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROTARY}},
    "dots1": {"n_shared_experts": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "nemotron": {"num_key_value_heads": 2},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_hidden_layers": 3},
}

# Modules imported before a process is forked for each family: the imports take longer than a small model.
IMPORTED = [
    __name__,
    "transformers.models.bert.modeling_bert",
    "transformers.models.gemma3.modeling_gemma3",
    *(f"fusedops.torch.conversion.hf.{file}" for file in ("dense", "loss", "mlp", "norms", "residual", "rotary")),
]


@dataclass(frozen=True)
class Family:
    """A model type, its config class, and its model classes; the first model class that can be built is used."""

    name: str
    config: str
    models: tuple[str, ...]

    def config_of(self, shrink: Shrink = Shrink.ALL, **options: Any) -> Any:
        own = _OPTIONS.get(self.name, {}) if shrink is Shrink.ALL else {}
        return small_config(getattr(transformers, self.config), shrink, **{**own, **options})

    def build(self, dtype: str = "float32", device: str = "cpu", seed: int = 0, **options: Any) -> Any:
        """A small model whose weights are all random, even those of norms, whose initial values are ones or zeros."""
        model = self.plain(seed, **options)
        if getattr(model, "loss_type", "") is None:  # the model would warn, and torch.compile cannot trace warnings
            model.loss_type = "ForCausalLM"
        with torch.no_grad():
            for weight in model.parameters():
                if weight.is_floating_point():
                    weight += 0.1 * torch.randn_like(weight)
        return model.to(device, getattr(torch, dtype)).eval()

    def plain(self, seed: int = 0, **options: Any) -> Any:
        """A small model as transformers initializes it; with the default widths if small ones are invalid."""
        problem: Exception | None = None
        for shrink, model in itertools.product((Shrink.ALL, Shrink.COUNTS), self.models):
            kind = getattr(transformers, model)
            try:
                config = self.config_of(shrink, **options)
                if shrink is Shrink.COUNTS and _parameters(kind, config) > _MAX_PARAMETERS:
                    continue
                torch.manual_seed(seed)
                return kind(config)
            except Exception as error:
                problem = problem or error
        raise problem or ValueError("it is too large with the widths that it has")

    def released(self, device: str, dtype: str) -> Any:
        """A model of few layers whose other sizes are its config's defaults, mostly those of a released model.

        The number of experts is reduced if the model is too large otherwise.

        Raises:
            ValueError: the model is too large even so.
        """
        kind, config = getattr(transformers, self.models[0]), self.config_of(Shrink.LAYERS)
        if _parameters(kind, config) > _MAX_PARAMETERS_RELEASED:
            fewer = {name: _FEW_EXPERTS for name in _EXPERTS if (getattr(config, name, 0) or 0) > _FEW_EXPERTS}
            config = self.config_of(Shrink.LAYERS, **fewer)
        if _parameters(kind, config) > _MAX_PARAMETERS_RELEASED:
            raise ValueError(f"more than {_MAX_PARAMETERS_RELEASED:.0e} parameters")
        torch.manual_seed(0)
        with torch.device(device):
            return kind(config).to(device, getattr(torch, dtype))


def _parameters(kind: type, config: Any) -> int:
    """The number of parameters, without allocating them."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in kind(config).parameters())


@functools.cache
def families() -> dict[str, Family]:
    """The families by model type, in alphabetical order."""
    mappings = {
        name.removeprefix("MODEL_FOR_").removesuffix("_MAPPING_NAMES"): getattr(modeling_auto, name)
        for name in dir(modeling_auto)
        if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES")
    }
    base = mappings.pop("MODEL")
    ordered = [mappings.pop(name) for name in _PREFERRED] + [*mappings.values(), base]
    found = {}
    for kind, config in sorted(configuration_auto.CONFIG_MAPPING_NAMES.items()):
        models = [mapping[kind] for mapping in ordered if kind in mapping]
        names = dict.fromkeys(model if isinstance(model, str) else model[0] for model in models)
        if names:
            found[kind] = Family(kind, config, (*names,)[:_MAX_CLASSES])
    return found


def prepare() -> None:
    """Sets up a process that runs one small model."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    warnings.filterwarnings("ignore")


def count(name: str) -> Entry:
    """Calls `row_of`; runs in a separate process."""
    prepare()
    return row_of(name)


def row_of(name: str) -> Entry:
    """The counts of a family's small model."""
    model = families()[name].plain()
    modules = list(model.modules())
    kinds = {module: kinds_of(module) for module in modules}
    classes = {module: type(module).__name__ for module in modules}
    outcomes = reported(model).outcomes
    called = attending(model, [each for each in modules if kinds[each][ATTENTIONS]])

    def does(module: Any, kind: str) -> bool:
        return not isinstance(module, OwnPositions)  # only its masks are computed by fusedops

    return {"model": type(model).__name__, **counted(kinds, outcomes, classes, called, does)}
