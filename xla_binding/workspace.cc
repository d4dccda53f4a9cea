#include "workspace.h"

#include <vector>

#include "dense.h"

namespace fusedops::xla_binding {

int64_t workspace(const Operator& op, const Value* attributes, bool cuda, std::span<const int64_t> counts,
                  std::span<const Tensor> operands, std::span<const Tensor> outputs) {
  if (!op.workspace) return 0;
  std::vector<int64_t> strides((operands.size() + outputs.size()) * kMaxRank + 1);
  int64_t* next = strides.data();
  void* const somewhere = next;  // never read, but an operator may take null for an absent input
  const auto view = [somewhere, &next](const Tensor& tensor) {
    const auto rank = static_cast<int>(tensor.sizes.size());
    const View made = dense_view(somewhere, tensor.dtype, rank, tensor.sizes.data(), next);
    next += kMaxRank;
    return made;
  };
  std::vector<View> inputs;
  for (const Tensor& operand : operands) inputs.push_back(view(operand));
  Call call(op);
  call.attributes = attributes;
  call.context.cuda = cuda;
  for (size_t i = 0, position = 0; i < op.inputs.size(); position += static_cast<size_t>(counts[i++])) {
    if (counts[i] > 0) call.inputs[i] = &inputs[position];
    if (op.inputs[i].kind == Kind::list) call.counts[i] = counts[i];
  }
  for (size_t i = 0; i < outputs.size(); ++i) call.outputs[i] = view(outputs[i]);
  return static_cast<int64_t>(op.workspace(call));
}

}  // namespace fusedops::xla_binding
