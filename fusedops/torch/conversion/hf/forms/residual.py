"""Blocks of residual connections.

In a form, `**arguments` stands for any arguments that a block forwards to its attention under their own names.
"""
# mypy: ignore-errors

from __future__ import annotations

from fusedops.torch.conversion.hf.forms import Form


class LlamaDecoderLayer(Form, mixin="residual.PreNormBlock"):
    def forward(self, hidden_states, **arguments):
        residual = hidden_states
        hidden_states = self.norm(hidden_states)
        hidden_states, _ = self.attention(hidden_states=hidden_states, **arguments)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.norm_of_sum(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class GptOssDecoderLayer(Form, mixin="residual.MixtureBlock"):
    def forward(self, hidden_states, **arguments):
        residual = hidden_states
        hidden_states = self.norm(hidden_states)
        hidden_states, _ = self.attention(hidden_states=hidden_states, **arguments)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.norm_of_sum(hidden_states)
        hidden_states, _ = self.mlp(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class GraniteDecoderLayer(Form, mixin="residual.ScaledBlock"):
    def forward(self, hidden_states, **arguments):
        residual = hidden_states
        hidden_states = self.norm(hidden_states)
        hidden_states, _ = self.attention(hidden_states=hidden_states, **arguments)
        hidden_states = residual + hidden_states * self.multiplier
        residual = hidden_states
        hidden_states = self.norm_of_sum(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = residual + hidden_states * self.multiplier
        return hidden_states


class Gemma2DecoderLayer(
    Form,
    mixin="residual.PreNormBlock",
    after_attention=("norm_of_attention",),
    after_mlp=("norm_of_mlp",),
):
    def forward(self, hidden_states, **arguments):
        residual = hidden_states
        hidden_states = self.norm(hidden_states)
        hidden_states, _ = self.attention(hidden_states=hidden_states, **arguments)
        hidden_states = self.norm_of_attention(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.norm_of_sum(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.norm_of_mlp(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class Phi3DecoderLayer(
    Form,
    mixin="residual.PreNormBlock",
    after_attention=("dropout_of_attention",),
    after_mlp=("dropout_of_mlp",),
):
    def forward(self, hidden_states, **arguments):
        residual = hidden_states
        hidden_states = self.norm(hidden_states)
        hidden_states, _ = self.attention(hidden_states=hidden_states, **arguments)
        hidden_states = residual + self.dropout_of_attention(hidden_states)
        residual = hidden_states
        hidden_states = self.norm_of_sum(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = residual + self.dropout_of_mlp(hidden_states)
        return hidden_states


class Dinov2Layer(
    Form,
    mixin="residual.PreNormBlockByPosition",
    after_attention=("scale_of_attention", "drop_path"),
    after_mlp=("scale_of_mlp", "drop_path"),
):
    def forward(self, hidden_states, **arguments):
        residual = hidden_states
        hidden_states = self.norm(hidden_states)
        hidden_states, _ = self.attention(hidden_states, **arguments)
        hidden_states = self.scale_of_attention(hidden_states)
        hidden_states = self.drop_path(hidden_states) + residual
        residual = hidden_states
        hidden_states = self.norm_of_sum(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.scale_of_mlp(hidden_states)
        hidden_states = self.drop_path(hidden_states) + residual
        return hidden_states


class ViTLayer(
    Form, mixin="residual.PreNormBlockByPosition", positional=1, after_attention=("dropout",), after_mlp=("dropout",)
):
    def forward(self, hidden_states, attention_mask=None, **arguments):
        residual = hidden_states
        hidden_states = self.norm(hidden_states)
        hidden_states, _ = self.attention(hidden_states, attention_mask, **arguments)
        hidden_states = self.dropout(hidden_states)
        hidden_states = hidden_states + residual
        residual = hidden_states
        hidden_states = self.norm_of_sum(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.dropout(hidden_states)
        hidden_states = hidden_states + residual
        return hidden_states


class Qwen2VLVisionBlock(Form, mixin="residual.VisionBlock"):
    def forward(self, hidden_states, **arguments):
        hidden_states = hidden_states + self.attention(self.norm(hidden_states), **arguments)
        hidden_states = hidden_states + self.mlp(self.norm_of_sum(hidden_states))
        return hidden_states


class GPT2Block(Form, mixin="residual.GPT2Block"):
    def forward(
        self,
        hidden_states,
        past_key_values=None,
        attention_mask=None,
        encoder_hidden_states=None,
        encoder_attention_mask=None,
        use_cache=False,
        **kwargs,
    ):
        residual = hidden_states
        hidden_states = self.norm(hidden_states)
        attn_output, _ = self.attention(
            hidden_states,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_states = attn_output + residual
        if encoder_hidden_states is not None:
            if not hasattr(self, "crossattention"):
                raise ValueError(
                    f"If `encoder_hidden_states` are passed, {self} has to be instantiated with "
                    "cross-attention layers by setting `config.add_cross_attention=True`"
                )
            residual = hidden_states
            hidden_states = self.norm_of_encoder(hidden_states)
            cross_attn_output, _ = self.of_encoder(
                hidden_states,
                past_key_values=past_key_values,
                attention_mask=attention_mask,
                encoder_hidden_states=encoder_hidden_states,
                encoder_attention_mask=encoder_attention_mask,
            )
            hidden_states = residual + cross_attn_output
        residual = hidden_states
        hidden_states = self.norm_of_sum(hidden_states)
        feed_forward_hidden_states = self.mlp(hidden_states)
        hidden_states = residual + feed_forward_hidden_states
        return hidden_states


class BertOutput(Form, mixin="residual.PostNorm"):
    def forward(self, hidden_states, input_tensor):
        hidden_states = self.dense(hidden_states)
        hidden_states = self.dropout(hidden_states)
        hidden_states = self.norm(hidden_states + input_tensor)
        return hidden_states


class EsmOutput(Form, mixin="residual.DroppedSum"):
    def forward(self, hidden_states, input_tensor):
        hidden_states = self.dense(hidden_states)
        hidden_states = self.dropout(hidden_states)
        hidden_states = hidden_states + input_tensor
        return hidden_states


class T5LayerFF(Form, mixin="residual.DroppedMLP"):
    def forward(self, hidden_states):
        forwarded_states = self.norm(hidden_states)
        forwarded_states = self.mlp(forwarded_states)
        hidden_states = hidden_states + self.dropout(forwarded_states)
        return hidden_states


class T5LayerSelfAttention(Form, mixin="residual.DroppedSelfAttention"):
    def forward(self, hidden_states, attention_mask=None, position_bias=None, past_key_values=None, **kwargs):
        normed_hidden_states = self.norm(hidden_states)
        attention_output, position_bias, attn_weights = self.attention(
            normed_hidden_states,
            mask=attention_mask,
            position_bias=position_bias,
            past_key_values=past_key_values,
            **kwargs,
        )
        attention_output = hidden_states + self.dropout(attention_output)
        return attention_output, position_bias, attn_weights


class T5LayerCrossAttention(Form, mixin="residual.DroppedCrossAttention"):
    def forward(
        self,
        hidden_states,
        key_value_states,
        attention_mask=None,
        position_bias=None,
        past_key_values=None,
        **kwargs,
    ):
        normed_hidden_states = self.norm(hidden_states)
        attention_output, position_bias, attn_weights = self.attention(
            normed_hidden_states,
            mask=attention_mask,
            key_value_states=key_value_states,
            position_bias=position_bias,
            past_key_values=past_key_values,
            **kwargs,
        )
        layer_output = hidden_states + self.dropout(attention_output)
        return layer_output, position_bias, attn_weights
