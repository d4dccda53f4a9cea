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
