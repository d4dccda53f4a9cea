// The declaration of an operator. Every framework derives schema, shape rule and kernels from it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/declaration/context.h"
#include "core/declaration/rule.h"
#include "core/declaration/signature.h"
#include "core/declaration/status.h"
#include "core/declaration/view.h"

namespace fusedops {

// A step of a derivative: a call of another operator, or an upstream gradient passed through.
//
// The upstream gradient of the output `y` is named "dy". It is absent if no gradient flows through y. Steps run in
// order. Each computes the wanted gradients that no earlier step has computed. A step without any is left out, as is
// one whose required upstream gradient is absent.
//
// `op` gets the attributes that both operators declare. Its need_dx is true if an input with gradient dx is wanted.
// Inputs that no step lists are not differentiable.
struct Step {
  struct Gradient {
    const char* input;   // this input's gradient
    const char* source;  // this output of `op`, or, without an `op`, this upstream gradient
  };

  struct Passed {
    const char* attribute;  // the attribute of `op` to set
    const char* source;     // the attribute that gives its value
    bool negated = false;   // passes the negation of a bool
  };

  const char* op = nullptr;
  std::vector<const char*> inputs = {};  // inputs of `op`: upstream gradients, inputs and outputs by name; null: absent
  std::vector<Gradient> gradients;
  const char* if_wanted = nullptr;      // left out unless this input's gradient is wanted
  const char* if_given = nullptr;       // left out unless this optional input is given
  std::vector<Passed> attributes = {};  // attributes of `op` with another name or value
};

// The call of a backward operator whose inputs have the names of what they are given. Its output dx is the gradient of
// the input x.
inline Step call_of(const Signature& backward) {
  Step step{.op = backward.name, .gradients = {}};
  for (const Input& input : backward.inputs) step.inputs.push_back(input.name);
  for (const Output& output : backward.outputs) step.gradients.push_back({output.name + 1, output.name});
  return step;
}

struct Operator;

struct Call {
  explicit Call(const Operator& op);
  explicit Call(Operator&&) = delete;

  const Operator& op;
  // Null: an absent optional, or a scalar passed as a number. For a list, its first tensor.
  PartialArray<const View*, kMaxInputs> inputs;
  PartialArray<int64_t, kMaxInputs> counts;  // for a list: the number of tensors
  PartialArray<double, kMaxInputs> scalars;  // the number, if a scalar input is null
  PartialArray<View, kMaxOutputs> outputs;
  Attributes attributes;
  void* workspace = nullptr;  // 16-byte aligned
  Context context;

  // The input at this index; null if it is absent or the index is kAbsent.
  const View* find(int index) const { return index == kAbsent ? nullptr : inputs[index]; }

  // The elements of an input or an output; null if it is absent or the index is kAbsent.
  template <class T>
  const T* input(int index) const {
    return find(index) ? static_cast<const T*>(inputs[index]->data) : nullptr;
  }
  template <class T>
  T* output(int index) const {
    return index == kAbsent ? nullptr : static_cast<T*>(outputs[index].data);
  }

  std::span<const View> list(int index) const { return {inputs[index], static_cast<size_t>(counts[index])}; }
};

using Kernel = Status (*)(const Call&);

// Weak declarations: in a build without nvcc the CUDA kernels are null in the table.
#ifdef FUSEDOPS_WITH_CUDA
#define FUSEDOPS_CUDA_KERNEL
#else
#define FUSEDOPS_CUDA_KERNEL __attribute__((weak))
#endif

// The implementation of a signature.
struct Implementation {
  // Empty: a backward operator, whose formula is in fusedops/gradients/, or an operator that is not differentiable.
  std::vector<Step> derivative = {};

  Status (*rule)(Rule&) = nullptr;  // checks, and shapes and dtypes of the outputs; dimensions may be unknown
  // Bytes of workspace. They depend on shapes, strides, dtypes, attributes, the presence of optional inputs and the
  // kind of device, not on pointers.
  size_t (*workspace)(const Call&) = nullptr;
  Kernel cpu = nullptr;
  Kernel cuda = nullptr;  // null in a build without nvcc

  bool rounds_to_8_bits = false;  // 8-bit results are not differentiable
};

struct Operator : Signature, Implementation {};

inline Call::Call(const Operator& op)
    : op(op),
      inputs(op.inputs.size()),
      counts(op.inputs.size()),
      scalars(op.inputs.size()),
      outputs(op.outputs.size()) {}

inline Rule::Rule(const Operator& op, Attributes attributes)
    : op(op), attributes(attributes), inputs(op.inputs.size()), counts(op.inputs.size()), outputs(op.outputs.size()) {}

// An operator whose derivative is the call of one backward operator.
inline Operator with_backward(const Signature& op, const Signature& backward, Implementation implementation) {
  implementation.derivative = {call_of(backward)};
  return {op, std::move(implementation)};
}

// True if the operator has a derivative or a formula in fusedops/gradients/. Others refuse inputs that need gradients.
inline bool is_differentiable(const Operator& op) { return !op.rounds_to_8_bits && !has_effects_or_lists(op); }

// Default visibility: the XLA library of TensorFlow's binding links these functions. PyTorch's binding hides them.
#define FUSEDOPS_EXPORT __attribute__((visibility("default")))

// Runs the operator's kernel for the device of the call. Like `workspace`, it may throw std::bad_alloc.
FUSEDOPS_EXPORT Status run(const Operator& op, const Call& call);

// The error sentence that bindings raise for std::bad_alloc.
FUSEDOPS_EXPORT std::string out_of_memory(const Operator& op);

// The table of operators. It grows; operators never move.
FUSEDOPS_EXPORT std::span<const Operator* const> operators();

// An operator takes about 100 kB of a framework's memory, and seconds of PyTorch's compiler for its two functions.
inline constexpr size_t kMaxOperators = 4096;

// Adds all operators to the table, or none if it returns an error. They must outlive the process's use of them.
FUSEDOPS_EXPORT Status add_operators(std::span<const Operator* const> added);

// The initial table: core_cuda/operators.cpp.
std::span<const Operator> built_in_operators();

// Index of the input that determines the device and represents the shape: the first tensor or list.
inline size_t first_tensor(const Operator& op) {
  size_t first = 0;
  while (op.inputs[first].kind != Kind::tensor && op.inputs[first].kind != Kind::list) ++first;
  return first;
}

// The operator of that name, or null.
FUSEDOPS_EXPORT const Operator* find_operator(std::string_view name);

// The built-in operator with this signature.
template <const Signature& kOp>
const Operator& built_in() {
  static const Operator& op = *find_operator(kOp.name);
  return op;
}

// Reads an attribute from its decimal spelling: "1e-6", "3", "true", "gelu", "[1.0, 0.5]". Doubles keep all their bits,
// unlike TensorFlow's 32-bit float attributes.
FUSEDOPS_EXPORT bool parse(Type type, std::string_view text, Value* value);

// fusedops.<function>: <attribute> must be <its type>; got <got>
FUSEDOPS_EXPORT std::string attribute_sentence(const Operator& op, int attribute, std::string_view got);

}  // namespace fusedops
