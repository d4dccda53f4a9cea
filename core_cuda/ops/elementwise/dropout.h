// dropout: y = x / (1 - rate) for kept elements, else 0. It is linear: its gradient is the same function. Srivastava et
// al., "Dropout: a simple way to prevent neural networks from overfitting", 2014.
#pragma once

#include "core/common/dropout.h"
#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Signature kDropout{
    .name = "dropout",
    .inputs = {{"x"}, {.name = "seed", .parameter = true}},
    .outputs = {{"y", "x"}},
    .attributes = {kRateAttribute},
    .axes = {{"..., Z -> ...; seed@..."}},
};

Operator dropout();
FUSEDOPS_CUDA_KERNEL Status dropout_cuda(const Call& call);

// residual + dropout(x)
inline constexpr Signature kDropoutAdd{
    .name = "dropout_add",
    .inputs = {{"x"}, {"residual"}, {.name = "seed", .parameter = true}},
    .outputs = {{"y", "x"}},
    .attributes = {kRateAttribute},
    .axes = {{"..., ..., Z -> ...; seed@..."}},
};

Operator dropout_add();
FUSEDOPS_CUDA_KERNEL Status dropout_add_cuda(const Call& call);

// The dropout of a call whose operator has these names.
template <const Signature& kOp>
Dropout dropout_of(const Call& call) {
  return Dropout(call, input_of(kOp, "seed"), call.attributes[attribute_of<double>(kOp, "rate")]);
}

Status check_seed(Rule& rule, int seed);

// Checks the seed and the rate of an operator with optional dropout.
Status check_dropout(Rule& rule, int seed, AttributeIndex<double> dropout);

}  // namespace fusedops
