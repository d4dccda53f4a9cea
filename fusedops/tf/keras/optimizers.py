"""Keras's optimizers, with all variables updated in one pass: `fusedops.tf.keras.optimizers`.

Each is a subclass of Keras's own of the same name, with its arguments, config, variables and checkpoints, and adds no
state. `AdamW` describes their common behaviour.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import tensorflow as tf

from fusedops.keras_layers.layer import register
from fusedops.tf import xla
from fusedops.tf.keras_backend import FLOATING
from fusedops.tf.operators import OPERATORS

__all__ = ["SGD", "Adam", "AdamW"]

_Tensors: TypeAlias = list[tf.Tensor]
_Variables: TypeAlias = list[tf.Variable]


class FusedOptimizer(keras.optimizers.Optimizer if TYPE_CHECKING else object):  # type: ignore[misc]
    """Precedes Keras's class among the bases of an optimizer.

    It has no state: a change of class alone turns an optimizer of Keras's into one of these.
    """

    def why_not(self) -> str | None:
        """The reason why TensorFlow's operators update the variables; None if the kernel does."""
        return None

    @property
    def supports_jit(self) -> bool:
        """True if XLA can compile a step."""
        return xla.fault is None or self.why_not() is not None

    def _update(self, gradients: _Tensors, variables: _Variables, rate: tf.Tensor, clip: Any, decay: float) -> None:
        """Updates variables of one dtype and device, with gradients times `clip`, unless it is None, and this weight
        decay."""
        raise NotImplementedError

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        self._check_gradients(grads, variables)
        super().apply(grads, None if trainable_variables is None else variables)

    def _check_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Raises for wrong gradients before anything is written. Real dtypes are cast, as in Keras."""
        for gradient, variable in zip(gradients, variables, strict=False):  # their numbers are compared later
            if gradient is None:
                continue
            x = gradient if hasattr(gradient, "dtype") else tf.convert_to_tensor(gradient)
            shape, dtype, wanted = _shape(x), tf.as_dtype(x.dtype), tf.as_dtype(variable.dtype)
            if not shape.is_compatible_with(variable.shape):
                expected, got = f"have shape {list(variable.shape)}", list(shape)
            elif dtype != wanted and not (dtype.is_floating or dtype.is_integer):
                expected, got = f"have a real dtype, such as the variable's, {wanted.name}", dtype.name
            else:
                continue
            title = f"fusedops.tf.keras.optimizers.{type(self).__name__}"
            name = getattr(variable, "path", variable.name)
            raise ValueError(f"{title}: the gradient of {name} must {expected}; got {got}")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> Any:
        if self.why_not() is not None or not _is_taken(gradient, variable):
            return self._plain_step(gradient, variable, learning_rate)
        self._update_some([(gradient, variable)], learning_rate, None, decay=0.0)  # Keras has clipped and decayed
        return None

    def _plain_step(self, gradient: Any, variable: Any, learning_rate: Any) -> Any:
        """The update by TensorFlow's operators."""
        return super().update_step(gradient, variable, learning_rate)

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        if not self._takes_all():
            super()._backend_update_step(grads, trainable_variables, learning_rate)
            return
        groups: dict[Any, list[tuple[Any, Any]]] = {}
        others: list[tuple[Any, Any]] = []
        for gradient, given in zip(grads, trainable_variables, strict=True):
            variable = _variable(given)
            if _is_taken(gradient, variable):
                decays = self.weight_decay is not None and self._use_weight_decay(given)
                groups.setdefault((variable.dtype, variable.device, decays), []).append((gradient, variable))
            else:
                others.append((gradient, given))
        for gradient, given in others:  # first, since TensorFlow may refuse their indices
            super()._apply_weight_decay([given])
            self._plain_step(gradient, given, learning_rate)
        for (_, _, decays), pairs in groups.items():
            clip = getattr(grads, "clip", None)
            self._update_some(pairs, learning_rate, clip, float(self.weight_decay) if decays else 0.0)

    def _clip_gradients(self, grads: Any) -> Any:
        """Leaves clipping by the global norm alone to the update, which multiplies the gradients."""
        plain = self._takes_all() and (self.global_clipnorm or 0) > 0 and not (self.clipnorm or 0) > 0
        if not plain or not all(isinstance(x, tf.Tensor) and x.dtype in FLOATING for x in grads):
            return super()._clip_gradients(grads)
        by_dtype: dict[Any, list[tf.Tensor]] = {}
        for x in grads:
            by_dtype.setdefault(x.dtype, []).append(x)
        norms = [OPERATORS.global_norm(some) for some in by_dtype.values()]
        return _Clipped(grads, norms, float(self.global_clipnorm))

    def _apply_weight_decay(self, variables: Any) -> None:
        if not self._takes_all():  # otherwise it is part of the update
            super()._apply_weight_decay(variables)

    def _takes_all(self) -> bool:
        return self.why_not() is None and not tf.distribute.has_strategy()

    def _update_some(self, pairs: Sequence[tuple[Any, Any]], learning_rate: Any, clip: Any, decay: float) -> None:
        variables = [_variable(variable) for _, variable in pairs]
        dtype = variables[0].dtype
        gradients = [tf.cast(gradient, dtype) for gradient, _ in pairs]
        wide = tf.float64 if dtype == tf.float64 else tf.float32
        rate = tf.cast(learning_rate, wide)
        self._update(gradients, variables, rate, None if clip is None else tf.cast(clip, wide), decay)

    def _states(self, of_all: Sequence[Any], variables: Sequence[tf.Variable]) -> list[tf.Variable]:
        return [_variable(of_all[self._get_variable_index(variable)]) for variable in variables]


class _Clipped(list[tf.Tensor]):
    """Gradients that the update multiplies by `clip`."""

    def __init__(self, gradients: Sequence[tf.Tensor], norms: Sequence[tf.Tensor], largest: float) -> None:
        super().__init__(gradients)
        norm = tf.linalg.norm(tf.stack([tf.cast(x, tf.float64) for x in norms]))
        # As in Keras: NaN if the norm is not finite.
        self.clip = tf.minimum(largest / norm, tf.ones_like(norm)) + 0.0 * norm


def _variable(given: Any) -> tf.Variable:
    return given.value if isinstance(given, keras.Variable) else given


def _shape(gradient: Any) -> tf.TensorShape:
    """The known part of a gradient's shape. A sparse gradient may not know its first dimension."""
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.TensorShape(gradient.shape)
    return tf.TensorShape([None]).concatenate(gradient.values.shape[1:]).merge_with(gradient.shape)


def _is_taken(gradient: Any, variable: Any) -> bool:
    """True if the kernel applies the gradient. Sparse gradients, as of embeddings, differ in Keras: Adam squares the
    parts of a row whose index comes twice, not their sum."""
    return not isinstance(gradient, tf.IndexedSlices) and tf.as_dtype(variable.dtype) in FLOATING


def _weighted_mean(before: Any, now: tf.Tensor, beta: Any) -> tf.Tensor:
    """beta · before + (1 - beta) · now, computed from the term of the larger weight, so that it never cancels."""
    before = tf.convert_to_tensor(_variable(before))
    from_before = before + (now - before) * tf.cast(1 - beta, now.dtype)
    from_now = now + (before - now) * tf.cast(beta, now.dtype)
    return tf.where(tf.cast(beta, now.dtype) < 0.5, from_now, from_before)


class _FusedAdam(FusedOptimizer):
    def why_not(self) -> str | None:
        if not all(isinstance(beta, Real) for beta in (self.beta_1, self.beta_2)):
            return "beta_1 and beta_2 are not numbers"
        return None

    def _plain_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Keras's update, with moments that do not cancel if a beta is near 0."""
        dtype = tf.as_dtype(variable.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            shape = tf.shape(_variable(variable))
            parts = tf.cast(gradient.values, dtype)
            first, second = (
                tf.convert_to_tensor(tf.IndexedSlices(x, gradient.indices, shape)) for x in (parts, tf.square(parts))
            )
        else:
            first = tf.cast(gradient, dtype)
            second = tf.square(first)
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        self.assign(m, _weighted_mean(m, first, self.beta_1))
        self.assign(v, _weighted_mean(v, second, self.beta_2))
        if self.amsgrad:
            largest = self._velocity_hats[index]
            self.assign(largest, tf.maximum(_variable(largest), _variable(v)))
            v = largest
        step = tf.cast(self.iterations + 1, dtype)
        left1, left2 = (1 - tf.pow(tf.cast(beta, dtype), step) for beta in (self.beta_1, self.beta_2))
        size = tf.cast(learning_rate, dtype) * tf.sqrt(left2) / left1
        self.assign_sub(variable, _variable(m) * size / (tf.sqrt(_variable(v)) + self.epsilon))

    def _update(self, gradients: _Tensors, variables: _Variables, rate: tf.Tensor, clip: Any, decay: float) -> None:
        m, v = (self._states(states, variables) for states in (self._momentums, self._velocities))
        largest = self._states(self._velocity_hats, variables) if self.amsgrad else []
        step = tf.cast(self.iterations, tf.float32)
        options: dict[str, Any] = {
            "beta1": float(self.beta_1),
            "beta2": float(self.beta_2),
            "eps": float(self.epsilon),
            "weight_decay": decay,
            "epsilon_hat": True,
        }
        OPERATORS.adamw(variables, gradients, m, v, largest, [], [], rate, step, None, None, clip, **options)


@register
class Adam(_FusedAdam, keras.optimizers.Adam):
    """keras.optimizers.Adam, with all variables updated in one pass; see `AdamW`.

    Example:
        >>> weight = keras.Variable([1.0, 2.0])
        >>> optimizer = fk.optimizers.Adam(learning_rate=0.5)
        >>> optimizer.apply([2 * weight], [weight])
        >>> weight.numpy().round(3).tolist()
        [0.5, 1.5]
    """


@register
class AdamW(_FusedAdam, keras.optimizers.AdamW):
    """keras.optimizers.AdamW, with all variables updated in one pass.

    Arguments, config, variables and checkpoints are Keras's, and no state is added. Around the update all is Keras's
    own: schedules, clipping, moving averages, accumulated gradients, constraints, and a LossScaleOptimizer around the
    optimizer; but `global_clipnorm` costs only one more read of the gradients. It works in eager code, in graphs and
    under XLA, in place. Under a tf.distribute.Strategy each variable has a call of its own.

    TensorFlow's operators, as in Keras, update variables with sparse gradients, which are those of embeddings, and
    all where a beta is no number: `why_not()` says so. Moments are right for betas near 0 as well, where Keras's
    m + (g - m) · (1 - beta) cancels.

    Raises:
        ValueError: a gradient has another shape than its variable, or a dtype that is not real where the variable's is;
            then nothing has been updated. Real dtypes are cast to the variable's. In a graph, InvalidArgumentError of a
            shape that is known only when it runs.

    Example:
        >>> weight = keras.Variable([1.0, 2.0])
        >>> optimizer = fk.optimizers.AdamW(learning_rate=0.5, weight_decay=0.0)
        >>> optimizer.apply([2 * weight], [weight])
        >>> weight.numpy().round(3).tolist()
        [0.5, 1.5]
    """


@register
class SGD(FusedOptimizer, keras.optimizers.SGD):
    """keras.optimizers.SGD, with all variables updated in one pass; see `AdamW`.

    Example:
        >>> weight = keras.Variable([1.0, 2.0])
        >>> optimizer = fk.optimizers.SGD(learning_rate=0.25, momentum=0.9)
        >>> optimizer.apply([2 * weight], [weight])
        >>> weight.numpy().tolist()
        [0.5, 1.0]
    """

    def _update(self, gradients: _Tensors, variables: _Variables, rate: tf.Tensor, clip: Any, decay: float) -> None:
        momentums = self._states(self.momentums, variables) if self.momentum != 0 else []
        options: dict[str, Any] = {
            "momentum": float(self.momentum),
            "weight_decay": decay,
            "decoupled": True,
            "nesterov": bool(self.nesterov),
            "velocity": True,
        }
        OPERATORS.sgd(variables, gradients, momentums, rate, None, None, clip, **options)
