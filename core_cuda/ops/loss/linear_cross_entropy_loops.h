// The loops over blocks of logits, on CPU and GPU. `Device` has the steps for a block, and the fused kernels, if any,
// for all rows of a block of columns.
#pragma once

#include "ops/elementwise/scale.h"
#include "ops/loss/linear_cross_entropy.h"

namespace fusedops {

template <class T, class Device>
Status products_of_block(const LossProducts& products, const GradientBlock& block, const Context& context) {
  if (products.need_dbias) FUSEDOPS_TRY(products.run_dbias(block));
  if (products.need_dweight) FUSEDOPS_TRY(Device::multiply(products.dweight(block), products.rest(), context));
  return products.need_dx ? Device::multiply(products.dx(block), products.rest(), context) : Status();
}

template <class Device>
Status round_dx(const LossProducts& products, int64_t row, int64_t rows, const Context& context) {
  if (!products.dx_sums()) return {};
  return Device::finish_sums(products.dx_of_chunk(row, rows), products.dx_sums(), 1, context);
}

// Gradients chunk by chunk, from dz. store_dz(row, rows, for_each_block) stores dz of `rows` rows of a chunk, and
// for_each_block(body) calls body with the chunk's blocks.
template <class T, class Device, class StoreDz>
Status gradients_by_rows(const LossProducts& products, const Context& context, StoreDz&& store_dz) {
  const LinearLogits& linear = products.linear;
  FUSEDOPS_TRY(linear.for_each_chunk([&](int64_t first, int64_t count) {
    const auto for_each_block = [&](auto&& body) {
      return linear.for_each_column_block(
          [&](int64_t column, int64_t columns) { return body(GradientBlock{first, count, column, columns}); });
    };
    FUSEDOPS_TRY(linear.for_each_row_block(
        first, count, [&](int64_t row, int64_t rows) { return store_dz(row, rows, for_each_block); }));
    FUSEDOPS_TRY(for_each_block([&](const GradientBlock& block) {
      return products.for_each_part(
          block, [&](const GradientBlock& part) { return products_of_block<T, Device>(products, part, context); });
    }));
    return round_dx<Device>(products, first, count, context);
  }));
  if (products.dweight_sums())
    FUSEDOPS_TRY(Device::finish_sums(products.whole_dweight(), products.dweight_sums(), 1, context));
  if (!products.need_dbias || !products.dbias_sums()) return {};
  return Device::finish_sums(products.whole_dbias(), products.dbias_sums(), linear.chunks(), context);
}

// Gradients for an upstream gradient of 1, chunk by chunk. finish_rows(row, rows) is called when the sums of rows are
// complete, and stores the lse that `gradient` reads unless it is given.
template <class T, class Device, class FinishRows>
Status unit_gradients(const LossProducts& products, const LossRows<compute_t<T>>& losses,
                      const LossGradient<compute_t<T>>& gradient, const LossMemory<compute_t<T>>& memory,
                      const Context& context, FinishRows&& finish_rows) {
  const LinearLogits& linear = products.linear;
  FUSEDOPS_TRY(
      (gradients_by_rows<T, Device>(products, context, [&](int64_t row, int64_t rows, auto&& for_each_block) -> Status {
        int64_t tile = 0;
        FUSEDOPS_TRY(for_each_block([&](const GradientBlock& block) {
          const auto logits = products.logits<T>(block, row, rows);
          T* const dz = products.dz<T>(products.first_part(block), row);
          FUSEDOPS_TRY(Device::sum_rows(losses, linear, logits, dz, memory, tile, context));
          tile += LossTiles(rows, block.columns, compute_dtype(linear.dtype)).tiles;
          return Status();
        }));
        FUSEDOPS_TRY(finish_rows(row, rows));
        return for_each_block([&](const GradientBlock& block) {
          const auto logits = products.logits<T>(block, row, rows);
          return products.for_each_part(block, [&](const GradientBlock& part) {
            return Device::differentiate(gradient, logits.part(part.column - block.column, part.columns),
                                         products.dz<T>(part, row), context);
          });
        });
      })));
  const ApartColumns apart = products.apart_dweight();
  return apart.columns > 0 ? Device::copy(apart, context) : Status();
}

// The losses and the gradients for an upstream gradient of 1.
template <class T, class Device>
Status linear_cross_entropy_with_gradients(const Call& call) {
  using A = compute_t<T>;
  const LinearLogits linear(call, kLinearCrossEntropy, LinearLogits::by_parts);
  const Losses<A> losses(call, kLinearCrossEntropy, linear.rows, linear.columns);
  const LossMemory<A> memory(linear, call.workspace);
  const LossProducts products(call, kKeptGradients, LinearLogits::by_parts, memory.memory.rest());
  const LossGradient<A> gradient(call, kLinearCrossEntropy, linear.rows, linear.columns, nullptr, losses.lse,
                                 losses.count);
  FUSEDOPS_TRY(Device::count(losses, memory, call));
  FUSEDOPS_TRY(
      (unit_gradients<T, Device>(products, losses, gradient, memory, call.context, [&](int64_t row, int64_t rows) {
        return Device::finish_rows(losses, memory, row, rows, call.context);
      })));
  return Device::finish_total(losses, memory, call.context);
}

// Stores the sums of all rows, a block of columns at a time.
template <class T, class Device>
Status sum_logits(const LinearLogits& linear, const LossRows<compute_t<T>>& losses,
                  const LossMemory<compute_t<T>>& memory, const Context& context) {
  auto* const sums = static_cast<compute_t<T>*>(memory.memory.rest());
  int64_t tile = 0;
  return linear.for_each_column_block([&](int64_t column, int64_t columns) {
    bool done = false;
    FUSEDOPS_TRY(Device::template sum_fused<T>(losses, linear, column, columns, sums, memory, tile, context, &done));
    if (!done)
      FUSEDOPS_TRY(linear.for_each_row_block(0, linear.rows, [&](int64_t row, int64_t rows) {
        const auto block = linear.block<T>(row, rows, column, columns, sums);
        FUSEDOPS_TRY(Device::multiply(linear.product(block), nullptr, context));
        return Device::reduce_block(losses, block, memory, tile, context);
      }));
    tile += LossTiles(linear.rows, columns, compute_dtype(linear.dtype)).tiles;
    return Status();
  });
}

template <class T, class Device>
Status linear_cross_entropy_forward(const Call& call) {
  using A = compute_t<T>;
  if (kKeptGradients.any(call)) return linear_cross_entropy_with_gradients<T, Device>(call);
  const LinearLogits linear(call, kLinearCrossEntropy, LinearLogits::by_columns);
  const Losses<A> losses(call, kLinearCrossEntropy, linear.rows, linear.columns);
  const LossMemory<A> memory(linear, call.workspace);
  FUSEDOPS_TRY(Device::check_labels(losses, call));
  FUSEDOPS_TRY((sum_logits<T, Device>(linear, losses, memory, call.context)));
  return Device::finish(losses, memory, call);
}

// Gradients of calls without unit gradients, a block of columns at a time.
template <class T, class Device>
Status gradients_by_columns(const LossProducts& products, const LossGradient<compute_t<T>>& gradient,
                            const Context& context) {
  if (!products.any()) return {};
  const LinearLogits& linear = products.linear;
  FUSEDOPS_TRY(linear.for_each_column_block([&](int64_t column, int64_t columns) {
    const GradientBlock block = {0, linear.rows, column, columns};
    bool done = false;
    FUSEDOPS_TRY(
        Device::differentiate_fused(gradient, linear, column, columns, products.dz<T>(block, 0), context, &done));
    if (!done)
      FUSEDOPS_TRY(linear.for_each_row_block(0, linear.rows, [&](int64_t row, int64_t rows) {
        const auto logits = products.logits<T>(block, row, rows);
        FUSEDOPS_TRY(Device::multiply(linear.product(logits), nullptr, context));
        return Device::differentiate(gradient, logits, products.dz<T>(block, row), context);
      }));
    return products_of_block<T, Device>(products, block, context);
  }));
  return round_dx<Device>(products, 0, linear.rows, context);
}

template <class T, class Device>
Status linear_cross_entropy_gradient(const Call& call) {
  using A = compute_t<T>;
  constexpr LossInputs kAt = kLinearCrossEntropyBackward;
  const bool is_unit =
      has_unit_gradients<kLinearCrossEntropyBackward>(call.attributes, call.inputs[kNeededGradients.x]->dtype);
  const auto division = is_unit ? LinearLogits::by_parts : LinearLogits::by_columns;
  const LinearLogits linear(call, kLinearCrossEntropyBackward, division);
  const LossGradient<A> gradient(call, kAt, linear.rows, linear.columns);
  if (!is_unit) {
    FUSEDOPS_TRY(Device::check_labels(gradient, call));
    const LossProducts products(call, kNeededGradients, division, call.workspace);
    FUSEDOPS_TRY((gradients_by_columns<T, Device>(products, gradient, call.context)));
    return scale_gradients(call, kNeededGradients, /*scale_computed=*/false);
  }
  const LossMemory<A> memory(linear, call.workspace);
  const LossProducts products(call, kNeededGradients, division, memory.memory.rest());
  if (products.any()) {
    FUSEDOPS_TRY(Device::check_labels(gradient, call));
    const LossGradient<A> unit(call, kAt, linear.rows, linear.columns, nullptr, gradient.lse, gradient.count);
    FUSEDOPS_TRY((unit_gradients<T, Device>(products, gradient, unit, memory, call.context,
                                            [](int64_t, int64_t) { return Status(); })));
  }
  return scale_gradients(call, kNeededGradients, /*scale_computed=*/true);
}

}  // namespace fusedops
