#include "node.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <mutex>

#include "derivative.h"

namespace fusedops::torch_autograd {

using torch::autograd::edge_list;
using torch::autograd::SavedVariable;

namespace {

edge_list edges_of(const Row& row, c10::ArrayRef<c10::IValue> arguments, Mask wanted) {
  edge_list edges(row.op.inputs.size());
  for (size_t i = 0; i < edges.size(); ++i)
    if (wanted & bit(i)) edges[i] = torch::autograd::impl::gradient_edge(arguments[i].toTensor());
  return edges;
}

uint64_t read_by(const Row& row, Mask wanted) {
  uint64_t places = 0;
  for (const BoundStep& step : row.steps) {
    if (!step.serves(wanted, wanted)) continue;
    for (const Argument& argument : step.arguments)
      if (argument.from == Argument::From::saved && (!argument.inputs || (argument.inputs & wanted)))
        places |= uint64_t(1) << argument.place;
  }
  return places;
}

// A tensor is unpacked where a step reads it, and only once: hooks may compute it anew.
class Unpacked : public Kept {
 public:
  Unpacked(const Row& row, const std::vector<SavedVariable>& saved, c10::ArrayRef<c10::IValue> rest,
           const Backward::Pointer& node)
      : Kept(rest), row_(row), saved_(saved), node_(node), tensors_(saved.size()) {}

  at::Tensor tensor(size_t place) override {
    at::Tensor& tensor = tensors_[place];
    if (!tensor.defined()) tensor = saved_[place].unpack(row_.saved[place].is_output ? node_ : nullptr);
    return tensor;
  }

 private:
  const Row& row_;
  const std::vector<SavedVariable>& saved_;
  const Backward::Pointer& node_;
  c10::SmallVector<at::Tensor, kMaxInputs> tensors_;
};

}  // namespace

Backward::Pointer Backward::make(const Row& row, c10::ArrayRef<c10::IValue> arguments, Mask wanted) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  return Pointer(new Backward(row, arguments, wanted), torch::autograd::deleteNode);
#else
  return c10::make_intrusive<Backward>(row, arguments, wanted);
#endif
}

Backward::Backward(const Row& row, c10::ArrayRef<c10::IValue> arguments, Mask wanted)
    : Node(edges_of(row, arguments, wanted)),
      row_(row),
      read_(read_by(row, wanted)),
      saved_(row.saved.size()),
      rest_(arguments.begin() + row.op.inputs.size(), arguments.end()) {
  for (size_t i = 0; i < saved_.size(); ++i) {
    if (!(read_ >> i & 1) || row.saved[i].is_output) continue;
    const c10::IValue& input = arguments[row.saved[i].place];
    if (input.isTensor()) saved_[i] = SavedVariable(input.toTensor(), /*is_output=*/false);
  }
}

void Backward::finish(const Pointer& node, c10::ArrayRef<c10::IValue> outputs) {
  auto& self = static_cast<Backward&>(*node);
  for (const size_t i : self.row_.differentiable) torch::autograd::set_history(outputs[i].toTensor(), node);
  for (size_t i = 0; i < self.saved_.size(); ++i) {
    const Saved& saved = self.row_.saved[i];
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
  Unpacked kept(row_, saved_, rest_, getptr());
  return gradients(row_, upstream, kept, wanted());
}

}  // namespace fusedops::torch_autograd
