"""Inputs for a model of any family: text, images or sound, with sizes from its config."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from audits.families.shrinking import ORDINARY

_SHAPE = (2, 12)  # sequences, tokens per sequence
_PATCHES = 4  # patches of an image per side


class NoInputs(Exception):
    """No inputs were found. The message has the model's error for the first inputs that were tried."""


def inputs_of(model: Any, shape: tuple[int, int] = _SHAPE) -> dict[str, torch.Tensor]:
    """The first inputs that the model accepts, with labels if it computes a loss.

    Args:
        model: a model of transformers.
        shape: the number of sequences or images, and of tokens per sequence.

    Raises:
        NoInputs: the model accepts none of the inputs that are tried.
    """
    problem: Exception | None = None
    for inputs in _tried(model, shape, torch.Generator().manual_seed(0)):
        inputs = {name: _as_of(model, x) for name, x in inputs.items()}
        try:
            torch.manual_seed(0)
            with torch.no_grad():
                model(**inputs)
            return inputs
        except Exception as error:
            problem = problem or error
    text = " ".join(str(problem).split())
    raise NoInputs(f"no inputs found: {type(problem).__name__}: {text}")


def _as_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x.to(model.device, model.dtype) if x.is_floating_point() else x.to(model.device)


def _tried(model: Any, shape: tuple[int, int], random: torch.Generator) -> Iterator[dict[str, torch.Tensor]]:
    names = set(inspect.signature(model.forward).parameters)
    tokens = torch.randint(5, ORDINARY, shape, generator=random)
    classes = torch.randint(0, getattr(model.config, "num_labels", 2) or 2, shape[:1], generator=random)
    text = {"input_ids": tokens}
    text |= {"decoder_input_ids": tokens} if "decoder_input_ids" in names else {}
    if "input_ids" in names:
        labelled = {name: tokens for name in ("labels",) if name in names}
        yield text | labelled
        yield {"input_ids": tokens} | labelled
        yield {"input_ids": tokens}
        yield text
    for signal in _signals(model.config, names, shape, random):
        shared = {name: x for name, x in text.items() if name in names}
        for labels in ({"labels": classes}, {"labels": tokens}, {}):
            if labels.keys() <= names:
                yield signal | labels
                yield shared | signal | labels


def _signals(
    config: Any, names: set[str], shape: tuple[int, int], random: torch.Generator
) -> Iterator[dict[str, torch.Tensor]]:
    batch, length = shape

    def noise(*rest: int) -> torch.Tensor:
        return torch.randn((batch, *rest), generator=random)

    if "pixel_values" in names:
        channels = first_field(config, ("num_channels", "in_channels", "in_chans"), 3)
        size = first_field(config, ("image_size", "img_size", "input_size"), 32)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        frames = first_field(config, ("num_frames", "frames_per_clip"), 0)
        if frames:
            yield {"pixel_values": noise(frames, channels, height, width)}
        for pixels in (height, 32, 64, 224):
            yield {"pixel_values": noise(channels, pixels, width if pixels == height else pixels)}
    if "input_values" in names:
        bins = first_field(config, ("num_mel_bins",), 16)
        yield {"input_values": noise(4000)}
        yield {"input_values": noise(1, 4000)}
        yield {"input_values": noise(first_field(config, ("max_length",), 64), bins)}
    if "input_features" in names:
        bins = first_field(config, ("num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim"), 80)
        positions = first_field(config, ("max_source_positions",), 64)
        for shape in ((bins, 2 * positions), (positions, bins), (2 * positions, bins), (bins, positions)):
            yield {"input_features": noise(*shape)}
    if "inputs_embeds" in names:
        yield {"inputs_embeds": noise(length, first_field(config, ("hidden_size", "d_model"), 64))}
    if {"hidden_states", "grid_thw"} <= names:  # patches of images, and their numbers in time, height and width
        side = first_field(config, ("patch_size",), 14)
        pixels = side * side * first_field(config, ("in_channels", "in_chans"), 3)
        pixels *= first_field(config, ("temporal_patch_size",), 1)
        patches = torch.randn((_PATCHES**2, pixels), generator=random)
        yield {"hidden_states": patches, "grid_thw": torch.tensor([[1, _PATCHES, _PATCHES]])}
    if "hidden_states" in names:
        yield {"hidden_states": noise(length, first_field(config, ("hidden_size", "d_model"), 64))}


def first_field(config: Any, names: tuple[str, ...], default: Any) -> Any:
    """The value of the first of these fields that the config has, or one of its nested configs."""
    for name in names:
        value = vars(config).get(name)
        if value is not None:
            return value
    for value in vars(config).values():
        if hasattr(value, "to_dict"):
            found = first_field(value, names, None)
            if found is not None:
                return found
    return default
