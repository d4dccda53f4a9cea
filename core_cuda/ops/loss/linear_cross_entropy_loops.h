// The loops over blocks of logits, on CPU and GPU. `Device` has the steps for a block, and the fused kernels, if any,
// for all rows of a block of columns.
#pragma once

#include "ops/loss/linear_cross_entropy.h"

namespace fusedops {

template <class T, class Device>
Status linear_cross_entropy_forward(const Call& call) {
  using A = compute_t<T>;
  const LinearLogits linear(call, kLinearCrossEntropy);
  const Losses<A> losses(call, kLinearCrossEntropy, linear.rows, linear.columns);
  const LossMemory<A> memory(linear, call.workspace);
  FUSEDOPS_TRY(Device::check_labels(losses, call));
  int64_t tile = 0;
  FUSEDOPS_TRY(linear.for_each_column_block([&](int64_t column, int64_t columns) {
    bool done = false;
    FUSEDOPS_TRY(Device::template sum_fused<T>(losses, linear, column, columns, memory, tile, call.context, &done));
    if (!done)
      FUSEDOPS_TRY(linear.for_each_row_block([&](int64_t row, int64_t rows) {
        const auto block = linear.block<T>(row, rows, column, columns, memory.sums);
        FUSEDOPS_TRY(Device::multiply(linear.product(block), nullptr, call.context));
        return Device::reduce_block(losses, block, memory, tile, call.context);
      }));
    tile += LossTiles(linear.rows, columns, compute_dtype(linear.dtype)).tiles;
    return Status();
  }));
  return Device::finish(losses, memory, call);
}

template <class T, class Device>
Status linear_cross_entropy_gradient(const Call& call) {
  using A = compute_t<T>;
  const LossProducts products(call, call.workspace);
  const LinearLogits& linear = products.linear;
  const LossGradient<A> gradient(call, kLinearCrossEntropyBackward, linear.rows, linear.columns);
  FUSEDOPS_TRY(Device::check_labels(gradient, call));
  FUSEDOPS_TRY(linear.for_each_column_block([&](int64_t column, int64_t columns) {
    T* const dz = static_cast<T*>(products.dz);
    bool done = false;
    FUSEDOPS_TRY(Device::differentiate_fused(gradient, linear, column, columns, dz, call.context, &done));
    if (!done)
      FUSEDOPS_TRY(linear.for_each_row_block([&](int64_t row, int64_t rows) {
        const auto block = linear.block<T>(row, rows, column, columns, static_cast<A*>(products.sums));
        FUSEDOPS_TRY(Device::multiply(linear.product(block), nullptr, call.context));
        return Device::differentiate(gradient, block, dz + row * columns, call.context);
      }));
    if (products.need_dbias) FUSEDOPS_TRY(products.run_dbias(column, columns));
    if (products.need_dweight)
      FUSEDOPS_TRY(Device::multiply(products.dweight(column, columns), products.rest(), call.context));
    if (!products.need_dx) return Status();
    return Device::multiply(products.dx(column, columns), products.rest(), call.context);
  }));
  if (!products.dx_sums) return {};
  return Device::round(products.dx_sums, products.dx_of_all_columns(), call.context);
}

}  // namespace fusedops
