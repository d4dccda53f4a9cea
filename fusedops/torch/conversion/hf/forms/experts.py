"""Gates of the experts of a mixture: both projections of all experts are packed in one tensor.

`fixed` is the name of an activation that is no attribute of the module, and `shift` is added to the second factor.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
from torch.nn import functional

from fusedops.torch.conversion.hf.forms import Form


class MixtralExperts(Form, mixin="experts.Experts", method="_apply_gate"):
    def _apply_gate(self, gate_up_out):
        gate, up = gate_up_out.chunk(2, dim=-1)
        return self.activation(gate) * up


class BeamExperts(Form, mixin="experts.Experts", method="_apply_gate"):
    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return (self.activation(gate.float()) * up.float()).to(gate.dtype)


class DeepseekV4Experts(Form, mixin="experts.Experts", method="_apply_gate"):
    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        gate = gate.clamp(max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        return self.activation(gate) * up


class Glm5NextTextExperts(Form, mixin="experts.Experts", method="_apply_gate", fixed="silu"):
    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        gate = gate.clamp(min=None, max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        return functional.silu(gate) * up


class GptOssExperts(Form, mixin="experts.Experts", method="_apply_gate", fixed="silu", shift=1.0, interleaved=True):
    def _apply_gate(self, gate_up):
        gate, up = gate_up[..., ::2], gate_up[..., 1::2]
        gate = gate.clamp(min=None, max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        glu = gate * torch.sigmoid(gate * self.alpha)
        gated_output = (up + 1) * glu
        return gated_output


class OpenAIPrivacyFilterExperts(Form, mixin="experts.Experts", method="_apply_gate", fixed="silu", shift=1.0):
    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        gate = gate.clamp(min=None, max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        glu = gate * torch.sigmoid(gate * self.alpha)
        gated_output = (up + 1) * glu
        return gated_output


class MiniMaxM3VLExperts(Form, mixin="experts.Experts", method="_apply_gate", fixed="silu", shift=1.0):
    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        gate = gate.clamp(max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        glu = gate * torch.sigmoid(gate * self.alpha)
        return (up + 1.0) * glu


class Llama4TextMoe(Form, mixin="experts.ScaledMixture"):
    def forward(self, hidden_states):
        hidden_states = hidden_states.reshape(-1, self.columns)
        router_scores, router_logits = self.router(hidden_states)
        routed_in = hidden_states.repeat(router_scores.shape[1], 1)
        routed_in = routed_in * router_scores.transpose(0, 1).reshape(-1, 1)
        routed_out = self.experts(routed_in)
        out = self.shared(hidden_states)
        out.add_(routed_out.reshape(router_scores.shape[1], -1, routed_out.shape[-1]).sum(dim=0))
        return out, router_logits


class Llama4Router(torch.nn.Linear):
    """The router of this mixture: the score of an expert that it does not choose is 0."""

    def forward(self, hidden_states):
        router_logits = super().forward(hidden_states)
        router_top_value, router_indices = torch.topk(router_logits, self.per_token, dim=1)
        router_scores = torch.full_like(router_logits, float("-inf")).scatter_(1, router_indices, router_top_value)
        router_scores = torch.nn.functional.sigmoid(router_scores.float()).to(router_scores.dtype)
        return router_scores, router_logits


class Llama4TextExperts(torch.nn.Module):
    """Its experts, of as many rows each: 0 for an input of 0."""

    def forward(self, hidden_states):
        hidden_states = hidden_states.view(self.gate_up.shape[0], -1, self.columns)
        gate_up = torch.bmm(hidden_states, self.gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        next_states = torch.bmm((up * self.activation(gate)), self.down)
        next_states = next_states.view(-1, self.columns)
        return next_states
