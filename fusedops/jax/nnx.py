"""Layers for Flax NNX over the functions: `from fusedops.jax import nnx as fnnx`.

Each is a subclass of Flax's own that adds no state: parameters, arguments, checkpoints and dtypes are Flax's. Arguments
that the functions do not have are left to Flax's code. Losses and `rope` are functions without parameters: those of
`fusedops.jax`.
"""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fusedops.functions.common import Activation
from fusedops.jax import functions as fo


def _value(variable: Any) -> Any:
    return None if variable is None else variable[...]


def _is_plain(norm: Any, mask: Any) -> bool:
    """True if a norm is over the last dimension of one device's array."""
    last = (-1, (-1,))
    return mask is None and norm.reduction_axes in last and norm.feature_axes in last and norm.axis_name is None


class RMSNorm(nnx.RMSNorm):
    """flax.nnx.RMSNorm, in one pass.

    Example:
        >>> layer = fnnx.RMSNorm(2, epsilon=0.0, rngs=nnx.Rngs(0))
        >>> layer(jnp.array([[1.0, 7.0]]))
        Array([[0.2, 1.4]], dtype=float32)
    """

    def __call__(self, x: Any, mask: Any = None) -> Any:
        if not _is_plain(self, mask):
            return super().__call__(x, mask)
        return fo.rms_norm(*self.promote_dtype((x, _value(self.scale)), dtype=self.dtype), eps=self.epsilon)


class LayerNorm(nnx.LayerNorm):
    """flax.nnx.LayerNorm, in one pass.

    Example:
        >>> layer = fnnx.LayerNorm(2, epsilon=0.0, rngs=nnx.Rngs(0))
        >>> layer(jnp.array([[1.0, 3.0]]))
        Array([[-1.,  1.]], dtype=float32)
    """

    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        if not _is_plain(self, mask):
            return super().__call__(x, mask=mask)
        values = self.promote_dtype((x, _value(self.scale), _value(self.bias)), dtype=self.dtype)
        return fo.layer_norm(*values, eps=self.epsilon)


class Linear(nnx.Linear):
    """flax.nnx.Linear with an activation, in one pass.

    Args:
        activation: as in `linear`.

    Example:
        >>> layer = fnnx.Linear(2, 3, activation="relu", rngs=nnx.Rngs(0))
        >>> layer(jnp.zeros((1, 2)))
        Array([[0., 0., 0.]], dtype=float32)
    """

    def __init__(self, *args: Any, activation: Activation = "identity", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activation = activation

    def __call__(self, inputs: Any, out_sharding: Any = None) -> Any:
        own = (self.dot_general, self.precision, self.preferred_element_type, out_sharding)
        if own != (jax.lax.dot_general, None, None, None):
            y = super().__call__(inputs, out_sharding)
            return fo.bias_act(y, activation=self.activation) if self.activation != "identity" else y
        x, kernel, bias = self.promote_dtype((inputs, _value(self.kernel), _value(self.bias)), dtype=self.dtype)
        return fo.linear(x, kernel, bias, self.activation, transpose_weight=False)


class GatedLinear(nnx.Module):
    """A gated linear layer: `gated_linear` of two linear layers, `gate` and `up`, in one pass.

    Args:
        in_features, out_features: as in flax.nnx.Linear.
        activation: as in `gated_linear`.
        linear: further arguments of both layers, those of flax.nnx.Linear.

    Example:
        >>> layer = fnnx.GatedLinear(2, 3, rngs=nnx.Rngs(0))
        >>> layer(jnp.zeros((1, 2)))
        Array([[0., 0., 0.]], dtype=float32)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        activation: Activation = "silu",
        use_bias: bool = False,
        **linear: Any,
    ) -> None:
        self.gate = nnx.Linear(in_features, out_features, use_bias=use_bias, **linear)
        self.up = nnx.Linear(in_features, out_features, use_bias=use_bias, **linear)
        self.activation = activation

    def __call__(self, inputs: Any) -> Any:
        layers = (self.gate, self.up)
        given = (inputs, *(_value(x.kernel) for x in layers), *(_value(x.bias) for x in layers))
        x, gate, up, gate_bias, up_bias = self.gate.promote_dtype(given, dtype=self.gate.dtype)
        return fo.gated_linear(x, gate, up, gate_bias, up_bias, self.activation, transpose_weight=False)


class Dropout(nnx.Dropout):
    """flax.nnx.Dropout without a stored mask, which the backward draws again.

    The key is that of Flax; which elements it drops is not the same.

    Example:
        >>> layer = fnnx.Dropout(0.5, rngs=nnx.Rngs(0))
        >>> sorted(set(layer(jnp.ones(64)).tolist()))
        [0.0, 2.0]
    """

    def __call__(self, inputs: Any, *, deterministic: bool | None = None, rngs: Any = None) -> Any:
        is_off = self.deterministic if deterministic is None else deterministic
        source = self.rngs if rngs is None else rngs
        if is_off is not False or source is None or self.broadcast_dims or not 0 < self.rate < 1:
            return super().__call__(inputs, deterministic=deterministic, rngs=rngs)
        if isinstance(source, nnx.Rngs):
            source = source[self.rng_collection]
        return fo.dropout(inputs, self.rate, source if isinstance(source, jax.Array) else source())


def dot_product_attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any) -> Any:
    """flax.nnx.dot_product_attention without stored scores, for `attention_fn` of flax.nnx.MultiHeadAttention.

    `options` are those of Flax. Weights that `module` shall sow, a precision, and dropout shared by the batch are left
    to Flax's code. A query whose keys are all masked has a result of zeros, where Flax gives the mean of the values.

    Example:
        >>> q = jnp.zeros((1, 2, 1, 1))
        >>> v = jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1)
        >>> fnnx.dot_product_attention(q, q, v, is_causal=True).ravel()
        Array([1., 2.], dtype=float32)
    """
    given = {**_ATTENTION, **options}
    rate = 0.0 if given["deterministic"] else given["dropout_rate"]
    is_broadcast = rate and given["broadcast_dropout"]
    if options.keys() - _ATTENTION.keys() or given["precision"] or given["module"] or is_broadcast:
        return nnx.dot_product_attention(query, key, value, bias, mask, **options)
    query, key, value = given["promote_dtype"]((query, key, value), dtype=given["dtype"])
    more: dict[str, Any] = {"causal": given["is_causal"]}
    if given["is_causal"] and query.shape[-3] != key.shape[-3]:
        more["query_offset"] = 0  # Flax's first query stands beside the first key
    if mask is not None:
        more["mask"] = jnp.asarray(mask, bool)
    if bias is not None:  # Flax adds it in the dtype of the scores
        bias = jnp.asarray(bias)
        more["bias"] = bias if bias.dtype == query.dtype else bias.astype(jnp.promote_types(query.dtype, jnp.float32))
    if rate:
        more.update(dropout=rate, seed=given["dropout_rng"])
    return fo.attention(query, key, value, **more)


_ATTENTION = {
    name: parameter.default
    for name, parameter in inspect.signature(nnx.dot_product_attention).parameters.items()
    if parameter.default is not parameter.empty
}
__all__ = ["Dropout", "GatedLinear", "LayerNorm", "Linear", "RMSNorm", "dot_product_attention"]
