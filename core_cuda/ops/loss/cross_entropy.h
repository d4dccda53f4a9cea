// cross_entropy: loss = -log softmax(logits)[label], over the last dimension. The formulas are in losses.h.
#pragma once

#include "ops/loss/losses.h"

namespace fusedops {

inline constexpr AttributeList kCrossEntropyOptions{kIgnoreIndex, kLabelSmoothing, kReductionOfRows,
                                                    kZLoss,       kFirstClass,     kClasses};

inline constexpr Signature kCrossEntropy{
    .name = "cross_entropy",
    .inputs = {{"logits", Kind::tensor, Layout::rows}, {"labels"}, optional_parameter("class_weight")},
    .outputs = {{"loss", "compute(logits)"}, {"lse", "compute(logits)", true}, {"count", "compute(logits)", true}},
    .attributes = kCrossEntropyOptions,
    .axes = {{"...v, ..., V -> ..., ...L, 1/...; v@first_class/classes", "reduction=none"},
             {"...v, ..., V -> 1/..., ...L, 1/...; v@first_class/classes", "reduction=sum"},
             {"...v, ..., V -> 1/...:count, ...L, 1/...; v@first_class/classes", "reduction=mean"}},
};

Operator cross_entropy();
FUSEDOPS_CUDA_KERNEL Status cross_entropy_cuda(const Call& call);

inline constexpr Signature kCrossEntropyBackward{
    .name = "cross_entropy_backward",
    .inputs = {{"dloss"},
               {"logits", Kind::tensor, Layout::rows},
               {"labels"},
               {"lse"},
               {"count"},
               optional_parameter("class_weight")},
    .outputs = {{.name = "dlogits", .dtype = "logits", .padded = true}},
    .attributes = kCrossEntropyOptions,
    .axes = {{"..., ...v, ..., ...L, 1/..., V -> ...v; v@first_class/classes", "reduction=none"},
             {"1, ...v, ..., ...L, 1/..., V -> ...v; v@first_class/classes", "reduction=sum"},
             {"1, ...v, ..., ...L, 1, V -> ...v; v@first_class/classes", "reduction=mean"}},
};

Operator cross_entropy_backward();
FUSEDOPS_CUDA_KERNEL Status cross_entropy_backward_cuda(const Call& call);

// Rows of logits, or of a block of their columns.
template <class T>
struct LogitRows {
  const T* data;
  int64_t stride;
  int64_t rows, columns;

  FUSEDOPS_HD const T* row(int64_t i) const { return data + i * stride; }
};

template <class T>
LogitRows<T> logits_of(const View& view) {
  const Rows rows = as_rows(view);
  return {static_cast<const T*>(view.data), rows.stride, rows.count, rows.size};
}

}  // namespace fusedops
