// An operator's first derivative as the core declares it, with every name resolved to a place: what a backward needs to
// know is looked up once, before any call.
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

// Where an argument of a step's operator comes from.
struct Argument {
  enum class From : uint8_t {
    upstream,  // the gradient of the differentiable output in that place
    saved,     // Row::saved in that place
    rest,      // a number or attribute of the forward
    negated,   // the same, a bool
    wanted,    // whether the gradient of one of `inputs` is wanted
    constant,
  };
  From from = From::constant;
  size_t place = 0;
  Mask inputs = 0;  // from `saved`: absent unless the gradient of one of these is wanted; 0: never absent
  c10::IValue value = {};
};

struct Gradient {
  size_t input, source;  // an output of the step's operator, or without one an upstream gradient
};

struct BoundStep {
  std::optional<c10::OperatorHandle> op;
  std::vector<Argument> arguments;  // all of its schema
  std::vector<Gradient> gradients;
  std::vector<size_t> needs;  // upstream gradients without which the step is skipped
  Mask gives = 0;
  Mask if_wanted = 0;              // 0: always
  std::optional<size_t> if_given;  // Row::saved in that place

  // Whether it can be of use, where the gradients of some inputs are wanted and those of some are still missing.
  bool serves(Mask wanted, Mask missing) const { return (gives & missing) && (!if_wanted || (if_wanted & wanted)); }
};

struct Saved {
  size_t place;  // among the inputs, or among the outputs
  bool is_output;
};

struct Row {
  explicit Row(const Operator& op);

  const Operator& op;
  std::string node;                    // FusedopsRmsNormBackward
  const c10::FunctionSchema& schema;   // torch.ops.fusedops.<op>
  size_t arguments;                    // of the schema
  bool is_plain;                       // has no derivative at all: lists, or inputs that it updates
  std::vector<size_t> differentiable;  // outputs: all but those that are kept for the backward
  std::vector<Saved> saved;            // all that a step reads
  std::vector<BoundStep> steps;
  Mask gives = 0;  // inputs that stand in a step; the others have no gradient
  mutable std::atomic<bool> known_to_compiler = false;
};

}  // namespace fusedops::torch_autograd
