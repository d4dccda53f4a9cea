#include "core/cuda/elementwise.cuh"
#include "ops/elementwise/dropout.h"

namespace fusedops {

namespace {

template <const Signature& kOp, class Formula>
Status elementwise(const Call& call, const Formula& formula, bool is_part) {
  return is_part ? cuda::elementwise<kOp>(call, cuda::OfPart<Formula>{formula}) : cuda::elementwise<kOp>(call, formula);
}

}  // namespace

Status dropout_cuda(const Call& call) {
  const Dropout dropout = dropout_of<kDropout>(call);
  return elementwise<kDropout>(call, dropout, dropout.is_part);
}

Status dropout_add_cuda(const Call& call) {
  const Dropout dropout = dropout_of<kDropoutAdd>(call);
  return elementwise<kDropoutAdd>(call, DropoutAdd{dropout}, dropout.is_part);
}

}  // namespace fusedops
