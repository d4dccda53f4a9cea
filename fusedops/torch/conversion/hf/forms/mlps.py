"""Gated MLPs: the activation of one projection, times another projection.

`first` names the modules before the projections, and `then` those after the product. `fixed` is the name of an
activation that is no attribute of the module.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
from torch.nn import functional

from fusedops.torch.conversion.hf.forms import Form


class LlamaMLP(Form, mixin="mlp.GatedMLP", then=("down",)):
    def forward(self, x):
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Llama4TextMLP(Form, mixin="mlp.GatedMLP", then=("down",)):
    def forward(self, x):
        down_proj = self.activation(self.gate(x)) * self.up(x)
        return self.down(down_proj)


class T5GemmaMLP(Form, mixin="mlp.GatedMLP", then=("dropout", "down")):
    def forward(self, x):
        hidden_states = self.activation(self.gate(x)) * self.up(x)
        hidden_states = self.dropout(hidden_states)
        return self.down(hidden_states)


class BitNetMLP(Form, mixin="mlp.GatedMLP", then=("norm", "down")):
    def forward(self, x):
        return self.down(self.norm(self.activation(self.gate(x)) * self.up(x)))


class RecurrentGemmaMlp(Form, mixin="mlp.GatedMLP", then=("down",)):
    def forward(self, hidden_states):
        gate = self.activation(self.gate(hidden_states))
        return self.down(gate * self.up(hidden_states))


class Glm4vVisionPatchMerger(Form, mixin="mlp.GatedMLP", first=("projection", "norm", "middle"), then=("down",)):
    def forward(self, hidden_state):
        hidden_state = self.projection(hidden_state)
        hidden_state = self.middle(self.norm(hidden_state))
        return self.down(self.activation(self.gate(hidden_state)) * self.up(hidden_state))


class Lfm2MLP(Form, mixin="mlp.GatedMLP", then=("down",), fixed="silu"):
    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class LlamaProjectMLP(Form, mixin="mlp.GatedMLP", then=("down",), fixed="silu"):
    """Meta's own code of Llama and its copies, with the up projection first."""

    def forward(self, x):
        return self.down(self.up(x) * functional.silu(self.gate(x)))


class BeamMLP(Form, mixin="mlp.GatedMLP", then=("down",)):
    def forward(self, x):
        gate = self.gate(x)
        up = self.up(x)
        activated = (self.activation(gate.float()) * up.float()).to(gate.dtype)
        return self.down(activated)


class CpmAntDenseGatedACT(Form, mixin="mlp.GatedMLP", then=()):
    def forward(self, hidden_states):
        gate_score = self.activation(self.gate(hidden_states))
        hidden_states = self.up(hidden_states)
        hidden_states = gate_score * hidden_states
        return hidden_states


class SeedOssMLP(Form, mixin="mlp.DroppedMLP", then=("down",)):
    def forward(self, x):
        down_proj = self.down(self.activation(self.gate(x)) * self.up(x))
        down_proj = functional.dropout(down_proj, p=self.dropout, training=self.training)
        return down_proj


class DeepseekV4MLP(Form, mixin="mlp.ClampedMLP", then=("down",)):
    def forward(self, x):
        gate = self.gate(x).clamp(max=self.limit)
        up = self.up(x).clamp(min=-self.limit, max=self.limit)
        return self.down(self.activation(gate) * up)


class Glm5NextTextMLP(Form, mixin="mlp.ClampedMLP", then=("down",)):
    def forward(self, x):
        gate = self.gate(x)
        up = self.up(x)
        gate = gate.clamp(min=None, max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        return self.down(self.activation(gate) * up)


class Glm5NextVisionPatchMerger(Form, mixin="mlp.ClampedMLP", first=("projection", "norm", "middle"), then=("down",)):
    def forward(self, hidden_state):
        hidden_state = self.projection(hidden_state)
        hidden_state = self.middle(self.norm(hidden_state))
        gate = self.gate(hidden_state)
        up = self.up(hidden_state)
        gate = gate.clamp(min=None, max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        return self.down(self.activation(gate) * up)


class FalconH1MLP(Form, mixin="mlp.ScaledMLP", then=("down",)):
    def forward(self, x):
        y = self.up(x) * self.activation(self.gate(x) * self.gate_scale)
        y = self.down(y) * self.scale
        return y


class EmbeddingGemma2TextPLEBlock(Form, mixin="mlp.GatedResidual", then=("down", "norm")):
    def forward(self, hidden_states, per_layer_input):
        residual = hidden_states
        hidden_states = self.gate(hidden_states)
        hidden_states = self.activation(hidden_states)
        hidden_states = hidden_states * per_layer_input
        hidden_states = self.down(hidden_states)
        hidden_states = self.norm(hidden_states)
        return residual + hidden_states


class T5DenseGatedActDense(Form, mixin="mlp.T5GatedMLP"):
    def forward(self, hidden_states):
        hidden_gelu = self.activation(self.gate(hidden_states))
        hidden_linear = self.up(hidden_states)
        hidden_states = hidden_gelu * hidden_linear
        hidden_states = self.dropout(hidden_states)
        if (
            isinstance(self.down.weight, torch.Tensor)
            and hidden_states.dtype != self.down.weight.dtype
            and self.down.weight.dtype != torch.int8
        ):
            hidden_states = hidden_states.to(self.down.weight.dtype)
        hidden_states = self.down(hidden_states)
        return hidden_states


class Phi3MLP(Form, mixin="mlp.PackedMLP", then=("down",)):
    def forward(self, hidden_states):
        up_states = self.packed(hidden_states)
        gate, up_states = up_states.chunk(2, dim=-1)
        up_states = up_states * self.activation(gate)
        return self.down(up_states)


class GraniteMoeSharedMLP(Form, mixin="mlp.PackedMLP", then=("down",)):
    def forward(self, hidden_states):
        hidden_states = self.packed(hidden_states)
        chunked_hidden_states = hidden_states.chunk(2, dim=-1)
        hidden_states = self.activation(chunked_hidden_states[0]) * chunked_hidden_states[1]
        hidden_states = self.down(hidden_states)
        return hidden_states


class ModernBertMLP(Form, mixin="mlp.PackedMLP", then=("dropout", "down")):
    def forward(self, hidden_states):
        input, gate = self.packed(hidden_states).chunk(2, dim=-1)
        return self.down(self.dropout(self.activation(input) * gate))


class MoonshineDecoderMLP(Form, mixin="mlp.PackedMLP", then=("down",), gate_is_first=False):
    def forward(self, hidden_states):
        hidden_states = self.packed(hidden_states)
        hidden_states, gate = hidden_states.chunk(2, dim=-1)
        hidden_states = self.activation(gate) * hidden_states
        hidden_states = self.down(hidden_states)
        return hidden_states


class Phi4MultimodalAudioMLP(
    Form, mixin="mlp.PackedMLP", first=("norm",), then=("dropout", "down", "dropout"), gate_is_first=False
):
    def forward(self, hidden_states):
        hidden_states = self.norm(hidden_states)
        up_states = self.packed(hidden_states)
        up_states, gate = up_states.chunk(2, dim=-1)
        up_states = up_states * self.activation(gate)
        up_states = self.dropout(up_states)
        hidden_states = self.down(up_states)
        out = self.dropout(hidden_states)
        return out


class MoshiGatingMLP(Form, mixin="mlp.LayeredMLP"):
    def forward(self, hidden_states, layer_idx=None):
        hidden_states = self.packed(hidden_states) if layer_idx is None else self.packed(hidden_states, layer_idx)
        batch_size, sequence_length, _ = hidden_states.shape
        hidden_states = hidden_states.view(batch_size, sequence_length, 2, -1)
        hidden_states = self.activation(hidden_states[..., 0, :]) * hidden_states[..., 1, :]
        hidden_states = self.down(hidden_states) if layer_idx is None else self.down(hidden_states, layer_idx)
        return hidden_states
