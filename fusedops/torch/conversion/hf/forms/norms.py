"""Normalizations by root mean square, or by mean and variance.

With `has_input_dtype` the result has the input's dtype for any dtype of the weight. In the other forms a float32 weight
makes it float32.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from fusedops.torch.conversion.hf.forms import Form


class LlamaRMSNorm(Form, mixin="norms.RMSNorm"):
    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.eps)
        return self.weight * hidden_states.to(input_dtype)


class GptOssRMSNorm(Form, mixin="norms.RMSNorm", has_input_dtype=True):
    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.eps)
        return (self.weight * hidden_states).to(input_dtype)


class HeliumRMSNorm(Form, mixin="norms.RMSNorm", has_input_dtype=True):
    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.eps)
        return (self.weight.to(torch.float32) * hidden_states).to(input_dtype)


class GemmaRMSNorm(Form, mixin="norms.RMSNorm", has_input_dtype=True, weight_offset=1.0):
    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float())
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)


class MuseSparkTextCenteredRMSNorm(Form, mixin="norms.RMSNorm", has_input_dtype=True, weight_offset=1.0):
    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float())
        output = output * (1.0 + self.weight).float()
        return output.type_as(x)


class MoshiRMSNorm(Form, mixin="norms.RMSNorm", has_input_dtype=True):
    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float())
        output = output * self.weight.float()
        return output.type_as(x)


class Llama4TextRMSNorm(Form, mixin="norms.RMSNorm"):
    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float()).type_as(x)
        return output * self.weight


class Llama4TextL2Norm(Form, mixin="norms.RMSNorm"):
    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self._norm(x.float()).type_as(x)


class DeepseekV4UnweightedRMSNorm(Form, mixin="norms.RMSNorm"):
    def forward(self, x):
        return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps).to(x.dtype)


class Gemma3nRMSNorm(Form, mixin="norms.OptionalRMSNorm", has_input_dtype=True):
    def _norm(self, hidden_states):
        mean_squared = hidden_states.pow(2).mean(-1, keepdim=True) + self.eps
        return hidden_states * torch.pow(mean_squared, -0.5)

    def forward(self, hidden_states):
        normed_output = self._norm(hidden_states.float())
        if self.with_scale:
            normed_output = normed_output * self.weight.float()
        return normed_output.type_as(hidden_states)


class T5LayerNorm(Form, mixin="norms.RMSNorm"):
    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.eps)
        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            hidden_states = hidden_states.to(self.weight.dtype)
        return self.weight * hidden_states


class ImageGPTLayerNorm(Form, mixin="norms.RMSNorm"):
    def forward(self, tensor):
        tensor = tensor / torch.sqrt(torch.mean(torch.square(tensor), axis=-1, keepdim=True) + self.eps)
        tensor = tensor * self.weight
        return tensor


class TorchRMSNorm(Form, mixin="norms.RMSNorm"):
    def forward(self, x):
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class UncastRMSNorm(Form, mixin="norms.RMSNorm"):
    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x


class UncastMethodRMSNorm(Form, mixin="norms.RMSNorm"):
    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self._norm(x) * self.weight


class UncastProductRMSNorm(Form, mixin="norms.RMSNorm"):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class UncastQuotientRMSNorm(Form, mixin="norms.RMSNorm"):
    def forward(self, x):
        rms = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + self.eps)
        return x / rms * self.weight


class UncastQuotientFirstRMSNorm(Form, mixin="norms.RMSNorm"):
    def forward(self, x):
        rms = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + self.eps)
        return self.weight * (x / rms)


class MambaRMSNormGated(Form, mixin="norms.GateThenRMSNorm"):
    def forward(self, hidden_states, gate=None):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        if gate is not None:
            hidden_states = hidden_states * nn.functional.silu(gate.to(torch.float32))
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.eps)
        return self.weight * hidden_states.to(input_dtype)


class MambaGroupedRMSNormGated(Form, mixin="norms.GateThenGroupedRMSNorm"):
    def forward(self, hidden_states, gate=None):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        if gate is not None:
            hidden_states = hidden_states * nn.functional.silu(gate.to(torch.float32))
        *prefix_dims, last_dim = hidden_states.shape
        group_count = last_dim // self.group_size
        hidden_states_group = hidden_states.view(*prefix_dims, group_count, self.group_size)
        variance = hidden_states_group.pow(2).mean(-1, keepdim=True)
        hidden_states_group = hidden_states_group * torch.rsqrt(variance + self.eps)
        hidden_states = hidden_states_group.view(*prefix_dims, group_count * self.group_size)
        return self.weight * hidden_states.to(input_dtype)


class CohereLayerNorm(Form, mixin="norms.LayerNorm", has_input_dtype=True):
    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        mean = hidden_states.mean(-1, keepdim=True)
        variance = (hidden_states - mean).pow(2).mean(-1, keepdim=True)
        hidden_states = (hidden_states - mean) * torch.rsqrt(variance + self.eps)
        hidden_states = self.weight.to(torch.float32) * hidden_states
        return hidden_states.to(input_dtype)


class DebertaLayerNorm(Form, mixin="norms.LayerNorm"):
    def forward(self, hidden_states):
        input_type = hidden_states.dtype
        hidden_states = hidden_states.float()
        mean = hidden_states.mean(-1, keepdim=True)
        variance = (hidden_states - mean).pow(2).mean(-1, keepdim=True)
        hidden_states = (hidden_states - mean) / torch.sqrt(variance + self.eps)
        hidden_states = hidden_states.to(input_type)
        y = self.weight * hidden_states + self.bias
        return y


class OlmoLayerNorm(Form, mixin="norms.LayerNorm", has_input_dtype=True, fixed_eps=1e-5):
    def forward(self, hidden_states):
        orig_dtype = hidden_states.dtype
        return functional.layer_norm(hidden_states.to(dtype=torch.float32), self.shape, None, None, eps=1e-5).to(
            orig_dtype
        )


class NanoGPTLayerNorm(Form, mixin="norms.LayerNorm", fixed_eps=1e-5):
    def forward(self, input):
        return functional.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class VideoPrismLayerNorm(Form, mixin="norms.LayerNorm", weight_offset=1.0):
    def forward(self, hidden_states):
        return functional.layer_norm(hidden_states, self.shape, self.weight + 1.0, self.bias, self.eps)


class ConvNextLayerNorm(Form, nn.LayerNorm, mixin="norms.ChannelsLayerNorm"):
    def forward(self, features):
        if self.data_format == "channels_first":
            features = features.permute(0, 2, 3, 1)
            features = super().forward(features)
            features = features.permute(0, 3, 1, 2)
        else:
            features = super().forward(features)
        return features
