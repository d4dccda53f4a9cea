// An operator's first derivative as the core declares it, with every name resolved to a position once, before any call.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "core/declaration/operator.h"

namespace fusedops::torch_autograd {

using Mask = uint32_t;  // a set of inputs of the forward

inline Mask bit(size_t input) { return Mask(1) << input; }

// The source of an argument of a step's operator.
struct Argument {
  enum class From : uint8_t {
    upstream,  // the gradient of the differentiable output at `place`
    saved,     // BoundOperator::saved at `place`
    rest,      // a number or attribute of the forward
    negated,   // a boolean attribute of the forward, negated
    wanted,    // True if the gradient of one of `inputs` is wanted
    constant,
  };
  From from = From::constant;
  size_t place = 0;
  Mask inputs = 0;       // of `saved`: absent unless the gradient of one of these is wanted; 0: never absent
  bool is_last = false;  // of `upstream` and `saved`: True if nothing reads the tensor later
  c10::IValue value = {};
};

struct Gradient {
  size_t input, source;  // source: an output of the step's operator, or an upstream gradient if there is none
};

struct BoundStep {
  std::optional<c10::OperatorHandle> op;
  std::vector<Argument> arguments;  // all arguments of its schema
  std::vector<Gradient> gradients;
  std::vector<size_t> required_upstream;  // upstream gradients without which the step is skipped
  Mask gradient_mask = 0;
  Mask if_wanted = 0;              // 0: always
  std::optional<size_t> if_given;  // place in BoundOperator::saved

  // True if the step computes a missing gradient and its condition holds.
  bool computes_any(Mask wanted, Mask missing) const {
    return (gradient_mask & missing) && (!if_wanted || (if_wanted & wanted));
  }
};

struct Saved {
  size_t place;  // among the inputs or outputs
  bool is_output;
};

struct BoundOperator {
  explicit BoundOperator(const Operator& op);

  const Operator& op;
  std::string node;                   // FusedopsRmsNormBackward
  const c10::FunctionSchema& schema;  // torch.ops.fusedops.<op>
  size_t arguments;                   // of the schema
  bool has_derivative;
  std::vector<size_t> differentiable;  // outputs, without those saved for the backward
  std::vector<Saved> saved;            // tensors that steps read
  std::vector<BoundStep> steps;
  Mask gradient_mask = 0;  // inputs with a gradient
  mutable std::atomic<bool> known_to_compiler = false;
};

}  // namespace fusedops::torch_autograd
