// Support for torch's compiled autograd, which traces a backward with proxies and compiles the trace.
#include <torch/csrc/dynamo/compiled_autograd.h>

#include "derivative.h"
#include "node.h"

namespace fusedops::torch_autograd {

using torch::autograd::CompiledNodeArgs;
using torch::autograd::SavedVariable;
using torch::autograd::SwapSavedVariables;
using variable_list = Backward::variable_list;

namespace {

// Numbers as constants: collect() of an IValue would make them symbols, which attributes cannot be.
void collect_constant(CompiledNodeArgs& args, const c10::IValue& value) {
  if (value.isDouble()) {
    args.collect(value.toDouble());
  } else if (value.isInt()) {
    args.collect(value.toInt());
  } else {
    args.collect(value);
  }
}

class CompiledValues : public SavedValues {
 public:
  CompiledValues(c10::ArrayRef<c10::IValue> tensors, c10::ArrayRef<c10::IValue> rest)
      : SavedValues(rest), tensors_(tensors) {}
  at::Tensor tensor(size_t place) override { return tensors_[place].toTensor(); }

 private:
  c10::ArrayRef<c10::IValue> tensors_;
};

// The function that the compiled backward calls. Its arguments are the saved tensors, the rest, and the wanted inputs.
variable_list call(const BoundOperator& bound, const variable_list& upstream, c10::ArrayRef<c10::IValue> args) {
  const size_t tensors = bound.saved.size();
  CompiledValues values(args.slice(0, tensors), args.slice(tensors, args.size() - tensors - 1));
  return gradients(bound, upstream, values, static_cast<Mask>(args.back().toInt()));
}

}  // namespace

void Backward::compiled_args(CompiledNodeArgs& args) const {
  args.collect(bound_.node);
  for (size_t i = 0; i < saved_.size(); ++i) args.collect(saved_[i], bound_.saved[i].is_output);
  for (const c10::IValue& value : rest_) collect_constant(args, value);
}

variable_list Backward::apply_with_saved(const variable_list& upstream, SwapSavedVariables& swap) {
  for (SavedVariable& saved : saved_) swap.before(saved);
  std::vector<c10::IValue> args;
  for (const SavedVariable& saved : saved_) args.emplace_back(saved.unpack());
  args.insert(args.end(), rest_.begin(), rest_.end());
  args.emplace_back(static_cast<int64_t>(wanted()));

  const auto& python = torch::dynamo::autograd::getPyCompilerInterface();
  if (!bound_.known_to_compiler.exchange(true)) {
    std::vector<at::TypePtr> types;
    for (const c10::IValue& value : args)
      types.push_back(value.isTensor() ? at::TypePtr(at::TensorType::get()) : value.type());
    python->bind_function(
        swap.get_py_compiler(), bound_.node,
        [this_operator = &bound_](const variable_list& dy, const std::vector<c10::IValue>& given) {
          return call(*this_operator, dy, given);
        },
        types);
  }
  using Metadata = std::vector<std::optional<torch::autograd::InputMetadata>>;
  const auto outputs =
      torch::dynamo::autograd::IValuePacker<Metadata>::pack(torch::dynamo::autograd::get_input_metadata(next_edges()));
  auto results =
      python->call_function(swap.get_py_compiler(), "apply_functional", bound_.node, upstream, args, outputs);
  for (SavedVariable& saved : saved_) swap.after(saved);
  return results;
}

}  // namespace fusedops::torch_autograd
