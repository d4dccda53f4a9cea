#include "node.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <mutex>
#include <utility>

#include "derivative.h"

namespace fusedops::torch_autograd {

using torch::autograd::edge_list;
using torch::autograd::SavedVariable;

namespace {

edge_list edges_of(const BoundOperator& bound, c10::ArrayRef<c10::IValue> arguments, Mask wanted) {
  edge_list edges(bound.op.inputs.size());
  for (size_t i = 0; i < edges.size(); ++i)
    if (wanted & bit(i)) edges[i] = torch::autograd::impl::gradient_edge(arguments[i].toTensor());
  return edges;
}

uint64_t read_by(const BoundOperator& bound, Mask wanted) {
  uint64_t places = 0;
  for (const BoundStep& step : bound.steps) {
    if (!step.computes_any(wanted, wanted)) continue;
    for (const Argument& argument : step.arguments)
      if (argument.from == Argument::From::saved && (!argument.inputs || (argument.inputs & wanted)))
        places |= uint64_t(1) << argument.place;
  }
  return places;
}

// Unpacks a tensor when a step reads it, and only once, since hooks may recompute it. Unless the graph is retained, the
// last read releases the tensor, so that an operator can free memory that nothing else holds.
class UnpackedValues : public SavedValues {
 public:
  UnpackedValues(const BoundOperator& bound, std::vector<SavedVariable>& saved, c10::ArrayRef<c10::IValue> rest,
                 Backward::Pointer node)
      : SavedValues(rest), bound_(bound), saved_(saved), node_(std::move(node)), tensors_(saved.size()) {}

  at::Tensor tensor(size_t place) override {
    at::Tensor& tensor = tensors_[place];
    if (!tensor.defined()) tensor = saved_[place].unpack(bound_.saved[place].is_output ? node_ : nullptr);
    return tensor;
  }

  at::Tensor take(size_t place) override {
    tensor(place);
    if (!is_retained_) saved_[place].reset_data();
    return std::move(tensors_[place]);
  }

 private:
  const BoundOperator& bound_;
  std::vector<SavedVariable>& saved_;
  const Backward::Pointer node_;
  const bool is_retained_ = torch::autograd::get_current_graph_task_keep_graph();
  c10::SmallVector<at::Tensor, kMaxInputs> tensors_;
};

}  // namespace

Backward::Pointer Backward::make(const BoundOperator& bound, c10::ArrayRef<c10::IValue> arguments, Mask wanted) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  return Pointer(new Backward(bound, arguments, wanted), torch::autograd::deleteNode);
#else
  return c10::make_intrusive<Backward>(bound, arguments, wanted);
#endif
}

Backward::Backward(const BoundOperator& bound, c10::ArrayRef<c10::IValue> arguments, Mask wanted)
    : Node(edges_of(bound, arguments, wanted)),
      bound_(bound),
      read_(read_by(bound, wanted)),
      saved_(bound.saved.size()),
      rest_(arguments.begin() + bound.op.inputs.size(), arguments.end()) {
  for (size_t i = 0; i < saved_.size(); ++i) {
    if (!(read_ >> i & 1) || bound.saved[i].is_output) continue;
    const c10::IValue& input = arguments[bound.saved[i].place];
    if (input.isTensor()) saved_[i] = SavedVariable(input.toTensor(), /*is_output=*/false);
  }
}

void Backward::finish(const Pointer& node, c10::ArrayRef<c10::IValue> outputs) {
  auto& self = static_cast<Backward&>(*node);
  for (const size_t i : self.bound_.differentiable) torch::autograd::set_history(outputs[i].toTensor(), node);
  for (size_t i = 0; i < self.saved_.size(); ++i) {
    const Saved& saved = self.bound_.saved[i];
    if (saved.is_output && (self.read_ >> i & 1))
      self.saved_[i] = SavedVariable(outputs[saved.place].toTensor(), /*is_output=*/true);
  }
}

void Backward::release_variables() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (SavedVariable& saved : saved_) saved.reset_data();
}

Mask Backward::wanted() const {
  Mask inputs = 0;
  for (size_t i = 0; i < num_outputs(); ++i)
    if (task_should_compute_output(i)) inputs |= bit(i);
  return inputs;
}

Backward::variable_list Backward::apply(variable_list&& upstream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  UnpackedValues values(bound_, saved_, rest_, getptr());
  return gradients(bound_, std::move(upstream), values, wanted());
}

}  // namespace fusedops::torch_autograd
