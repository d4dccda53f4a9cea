// How an operator is declared. Everything a framework must know to offer it (schema, shape rule, kernels) is derived
// from this one row, so that no adaptor knows an operator by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/declaration/context.h"
#include "core/declaration/rule.h"
#include "core/declaration/signature.h"
#include "core/declaration/status.h"
#include "core/declaration/view.h"

namespace fusedops {

// A step towards the gradients of an operator's inputs: a call of another operator, or an upstream gradient handed on.
//
// The upstream gradient of the output `y` is named "dy". It is absent where nothing flows back through y. The steps are
// taken in order, each for the inputs whose gradient is wanted and was given by no step before it, and left out if
// there are none, or if a tensor that it must have is an absent upstream gradient. `op` gets the attributes that both
// have, and its need_dx says whether an input is wanted whose gradient is dx. Inputs that no step names have no
// gradient.
struct Step {
  struct Gradient {
    const char* input;   // the gradient of this input
    const char* source;  // is this output of `op`; without an `op`, this upstream gradient
  };

  struct Passed {
    const char* attribute;  // this attribute of `op`
    const char* source;     // gets the value of this attribute
    bool negated = false;   // or, of a bool, its negation
  };

  const char* op = nullptr;
  std::vector<const char*> inputs = {};  // of `op`: upstream gradients, inputs and outputs by name; null: absent
  std::vector<Gradient> gradients;
  const char* if_wanted = nullptr;      // left out unless this input's gradient is wanted
  const char* if_given = nullptr;       // left out unless this optional input, which `op` reads, is given
  std::vector<Passed> attributes = {};  // those that `op` does not get under their own names, as they are
};

struct Operator;

struct Call {
  explicit Call(const Operator& op) : op(op) {}
  explicit Call(Operator&&) = delete;

  const Operator& op;
  const View* inputs[kMaxInputs] =
      {};                           // null: an absent optional, or a scalar passed as a number; of a list, its first
  int64_t counts[kMaxInputs] = {};  // of a list: how many tensors
  double scalars[kMaxInputs] = {};  // the number, where a scalar input is null
  View outputs[kMaxOutputs];
  Attributes attributes;
  void* workspace = nullptr;  // 16-byte aligned, as every framework's memory is
  Context context;

  // An input; null if it is absent, or nowhere.
  const View* find(int place) const { return place == kNowhere ? nullptr : inputs[place]; }

  // The elements of an input or an output, with null for the same.
  template <class T>
  const T* input(int place) const {
    return find(place) ? static_cast<const T*>(inputs[place]->data) : nullptr;
  }
  template <class T>
  T* output(int place) const {
    return place == kNowhere ? nullptr : static_cast<T*>(outputs[place].data);
  }

  std::span<const View> list(int place) const { return {inputs[place], static_cast<size_t>(counts[place])}; }
};

using Kernel = Status (*)(const Call&);

// A build without nvcc has no CUDA kernels: declared weak, they are null in the table.
#ifdef FUSEDOPS_WITH_CUDA
#define FUSEDOPS_CUDA_KERNEL
#else
#define FUSEDOPS_CUDA_KERNEL __attribute__((weak))
#endif

// What implements a signature.
struct Implementation {
  std::vector<Step> derivative = {};  // none: a formula in fusedops/gradients/, of a backward operator

  Status (*rule)(Rule&) = nullptr;  // all checks; output shapes and dtypes, over dimensions that may be unknown
  size_t (*workspace)(const Call&) = nullptr;  // bytes; follows from shapes, strides, dtypes and the kind of device
  Kernel cpu = nullptr;
  Kernel cuda = nullptr;  // null in a build without nvcc

  bool autocast = false;          // computes in the autocast dtype where PyTorch has one
  bool rounds_to_8_bits = false;  // nothing is differentiable in what is left
};

struct Operator : Signature, Implementation {};

// Whether it has a derivative, or a formula in fusedops/gradients/. What is not differentiable refuses an input that
// requires a gradient.
inline bool is_differentiable(const Operator& op) { return !op.rounds_to_8_bits && !has_effects_or_lists(op); }

// Visible outside of the library that it is linked into. A second library of TensorFlow's binding, for XLA, uses
// these functions of the first; PyTorch's binding hides them.
#define FUSEDOPS_EXPORT __attribute__((visibility("default")))

// Runs the operator's kernel for the device of the call. Like `workspace`, it may throw std::bad_alloc.
FUSEDOPS_EXPORT Status run(const Operator& op, const Call& call);

// The sentence of the framework's error that a binding makes of std::bad_alloc.
FUSEDOPS_EXPORT std::string out_of_memory(const Operator& op);

// The one table that the adaptors walk. It grows: rows are added, and stay where they are.
FUSEDOPS_EXPORT std::span<const Operator* const> operators();

// Each takes about 100 kB of a framework's memory. PyTorch's binding compiles two functions for each, in seconds.
inline constexpr size_t kMostOperators = 4096;

// Adds rows to the table, all of them or, with a sentence, none. They must last as long as the process.
FUSEDOPS_EXPORT Status add_operators(std::span<const Operator* const> rows);

// What the table starts with: core_cuda/operators.cpp.
std::span<const Operator> built_in_operators();

// The input whose device is the call's, and whose shape stands for it: not a mere scalar, and never absent. Of a list,
// which has at least one tensor then, the first.
inline size_t first_tensor(const Operator& op) {
  size_t first = 0;
  while (op.inputs[first].kind != Kind::tensor && op.inputs[first].kind != Kind::list) ++first;
  return first;
}

// Of that name, or null.
FUSEDOPS_EXPORT const Operator* find_operator(std::string_view name);

// The built-in operator with this signature.
template <const Signature& kOp>
const Operator& built_in() {
  static const Operator& op = *find_operator(kOp.name);
  return op;
}

// Reads an attribute from its decimal spelling: "1e-6", "3", "true", "gelu", "[1.0, 0.5]". Doubles keep all their bits,
// which TensorFlow's 32-bit float attributes would not.
FUSEDOPS_EXPORT bool parse(Type type, std::string_view text, Value* value);

// fusedops.<op>: <attribute> must be <its type>; got <got>
FUSEDOPS_EXPORT std::string attribute_sentence(const Operator& op, int attribute, std::string_view got);

}  // namespace fusedops
