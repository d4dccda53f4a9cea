// add: x + y. Both gradients are the upstream gradient itself.
#pragma once

#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Signature kAdd{
    .name = "add", .inputs = {{"x"}, {"y"}}, .outputs = {{"sum", "x"}}, .axes = {{"..., ... -> ..."}}};

struct Add {
  template <class T>
  FUSEDOPS_HD auto prepared() const {
    return [](compute_t<T> x, compute_t<T> y) { return x + y; };
  }
};

Operator add();
FUSEDOPS_CUDA_KERNEL Status add_cuda(const Call& call);

}  // namespace fusedops
