// The workspace of a call, of which XLA must know the size when it compiles.
#pragma once

#include <span>

#include "core/declaration/operator.h"

namespace fusedops::xla_binding {

struct Tensor {
  DType dtype;
  std::span<const int64_t> sizes;
};

// The workspace of a call in bytes. `counts`: the number of operands of each input.
int64_t workspace(const Operator& op, const Value* attributes, bool cuda, std::span<const int64_t> counts,
                  std::span<const Tensor> operands, std::span<const Tensor> outputs);

}  // namespace fusedops::xla_binding
