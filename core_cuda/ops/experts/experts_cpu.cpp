// The steps of experts on the CPU, besides its products.
#include <algorithm>
#include <vector>

#include "core/cpu/row_blocks.h"
#include "core/cpu/sum.h"
#include "ops/experts/experts.h"

namespace fusedops {
namespace {

using cpu::kBlock;

constexpr int64_t kGateCost = 600, kSumCost = 200;  // nanoseconds per kBlock elements

template <class Body>
Status typed(DType dtype, Body&& body) {
  return dispatch(dtype, [&](auto tag) {
    body(tag);
    return Status();
  });
}

// Elements [begin, begin + n) of the gates and ups in a row of z.
template <class T>
class Gates {
 public:
  using A = compute_t<T>;

  Gates(const ExpertGate& gate, const T* z, int64_t begin, int64_t n) {
    if (gate.interleaved) {
      this->gate = gates_, this->up = ups_;
      for (int64_t i = 0; i < n; ++i)
        gates_[i] = to_compute(z[2 * (begin + i)]), ups_[i] = to_compute(z[2 * (begin + i) + 1]);
    } else {
      this->gate = cpu::widened(z + begin, gates_, n);
      this->up = cpu::widened(z + gate.size + begin, ups_, n);
    }
  }
  Gates(const Gates&) = delete;

  const A *gate, *up;

 private:
  A gates_[kBlock], ups_[kBlock];
};

template <class T, class A>
void store(const A* from, T* to, int64_t n, int64_t step = 1) {
  for (int64_t i = 0; i < n; ++i) to[i * step] = from_compute<T>(from[i]);
}

template <class T>
void gate_rows(const ExpertsUp& step, const Context& context) {
  using A = compute_t<T>;
  const ExpertGate& gate = step.gate;
  const Groups& groups = step.product.groups;
  const T* const z = static_cast<const T*>(step.product.y);
  T* const h = static_cast<T*>(step.h);
  activations::dispatch(gate.activation, [&](auto activation) {
    cpu::for_row_blocks(context, groups.count, gate.size, kGateCost, [&](int64_t row, int64_t begin, int64_t n) {
      T* const to = h + row * gate.size + begin;
      if (row >= groups.offsets[groups.groups]) {
        std::fill_n(to, n, T());
        return;
      }
      const Gates<T> of(gate, z + step.product.y_rows[row] * 2 * gate.size, begin, n);
      A values[kBlock];
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) values[i] = gated_value<decltype(activation)>(gate, of.gate[i], of.up[i]).value;
      store(values, to, n);
    });
  });
}

template <class T>
class GateBackward {
 public:
  using A = compute_t<T>;

  explicit GateBackward(const ExpertsGateBackward& step) : step_(step) {}

  template <class Activation>
  void run_row(int64_t row) const {
    const int64_t size = step_.gate.size, slot = step_.order[row];
    T *const dz = static_cast<T*>(step_.dz), *const weighted_h = static_cast<T*>(step_.weighted_h);
    if (row >= step_.groups.offsets[step_.groups.groups]) {
      if (dz) std::fill_n(dz + row * 2 * size, 2 * size, T());
      if (weighted_h) std::fill_n(weighted_h + row * size, size, T());
      set_dweight(slot, A(0));
      return;
    }
    const A weight = step_.weight.template get<T>(slot);
    A dot = 0;
    for (int64_t begin = 0; begin < size; begin += kBlock) {
      const int64_t n = std::min(kBlock, size - begin);
      const Gates<T> of(step_.gate, static_cast<const T*>(step_.z_slots) + slot * 2 * size, begin, n);
      A buffer[kBlock], h[kBlock], dgate[kBlock], dup[kBlock];
      const A* const dh = cpu::widened(static_cast<const T*>(step_.dh) + row * size + begin, buffer, n);
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {
        const GatedValue<A> at = gated_value<Activation>(step_.gate, of.gate[i], of.up[i]);
        h[i] = at.value, dgate[i] = weight * dh[i] * at.dgate, dup[i] = weight * dh[i] * at.dup;
      }
      if (step_.dweight) dot += cpu::interleaved_sum<A>(n, [&](int64_t i) { return dh[i] * h[i]; });
      if (dz) {
        T* const to = dz + row * 2 * size;
        store(dgate, to + step_.gate.gate_at(begin), n, step_.gate.interleaved ? 2 : 1);
        store(dup, to + step_.gate.up_at(begin), n, step_.gate.interleaved ? 2 : 1);
      }
      if (!weighted_h) continue;
      for (int64_t i = 0; i < n; ++i) h[i] *= weight;
      store(h, weighted_h + row * size + begin, n);
    }
    if (step_.dweight) set_dweight(slot, dot + of_bias(row));
  }

 private:
  // dy . down_bias of the row's token and expert.
  A of_bias(int64_t row) const {
    if (!step_.down_bias) return A(0);
    const int32_t* const offsets = step_.groups.offsets;
    const int64_t expert = std::upper_bound(offsets, offsets + step_.groups.groups + 1, row) - offsets - 1;
    const T* const dy = static_cast<const T*>(step_.dy) + step_.tokens[row] * step_.dy_stride;
    const T* const bias = static_cast<const T*>(step_.down_bias) + expert * step_.dy_size;
    return cpu::interleaved_sum<A>(step_.dy_size, [&](int64_t i) { return to_compute(dy[i]) * to_compute(bias[i]); });
  }

  void set_dweight(int64_t slot, A value) const {
    if (!step_.dweight) return;
    if (step_.weight.is_f32)
      static_cast<float*>(step_.dweight)[slot] = float(value);
    else
      static_cast<T*>(step_.dweight)[slot] = from_compute<T>(value);
  }

  const ExpertsGateBackward& step_;
};

template <class T>
void bias_gradient(const ExpertsBiasGradient& step, const Context& context) {
  using A = compute_t<T>;
  const int64_t rows_of_group = step.groups.count / std::max<int64_t>(step.groups.groups, 1);
  const auto* const from = static_cast<const T*>(step.from.data);
  cpu::for_row_blocks(context, step.groups.groups, step.size, kSumCost * (rows_of_group + 1),
                      [&](int64_t e, int64_t begin, int64_t n) {
                        A sums[kBlock] = {}, buffer[kBlock];
                        for (int64_t r = step.groups.offsets[e]; r < step.groups.offsets[e + 1]; ++r) {
                          const int64_t row = step.from.rows ? step.from.rows[r] : r;
                          const A weight = step.weight.data ? step.weight.template get<T>(step.order[r]) : A(1);
                          const A* const values = cpu::widened(from + row * step.from.stride + begin, buffer, n);
                          for (int64_t i = 0; i < n; ++i) sums[i] += weight * values[i];
                        }
                        store(sums, static_cast<T*>(step.to) + e * step.size + begin, n);
                      });
}

template <class T>
void sum_slots(const ExpertsSum& step, const Context& context) {
  using A = compute_t<T>;
  const auto* const from = static_cast<const T*>(step.from);
  cpu::for_row_blocks(context, step.tokens, step.size, kSumCost * (step.per_token + 1),
                      [&](int64_t token, int64_t begin, int64_t n) {
                        A sums[kBlock] = {}, buffer[kBlock];
                        for (int64_t slot = token * step.per_token; slot < (token + 1) * step.per_token; ++slot) {
                          if (step.index.expert(slot) < 0) continue;
                          const A weight = step.weight.data ? step.weight.template get<T>(slot) : A(1);
                          const A* const values = cpu::widened(from + step.rows[slot] * step.size + begin, buffer, n);
                          for (int64_t i = 0; i < n; ++i) sums[i] += weight * values[i];
                        }
                        store(sums, static_cast<T*>(step.y) + token * step.size + begin, n);
                      });
}

}  // namespace

Status run_cpu(const ExpertOrder& step, const Context&) {
  const ExpertIndex& index = step.index;
  std::vector<int32_t> next(index.experts + 1);  // the next row of each expert; the last one counts the others
  for (int64_t slot = 0; slot < index.slots; ++slot) {
    const int32_t expert = index.expert(slot);
    ++next[expert < 0 ? index.experts : expert];
  }
  for (int64_t e = 0, first = 0; e <= index.experts; ++e) {
    const int32_t count = next[e];
    step.offsets[e] = next[e] = static_cast<int32_t>(first);
    first += count;
  }
  for (int64_t slot = 0; slot < index.slots; ++slot) {
    const int32_t expert = index.expert(slot), row = next[expert < 0 ? index.experts : expert]++;
    step.order[row] = static_cast<int32_t>(slot);
    step.tokens[row] = static_cast<int32_t>(slot / step.per_token);
    step.rows[slot] = row;
  }
  return {};
}

Status run_cpu(const ExpertsUp& step, const Context& context) {
  FUSEDOPS_TRY(multiply_groups_cpu(step.product, context));
  return typed(step.product.dtype, [&](auto tag) { gate_rows<typename decltype(tag)::type>(step, context); });
}

Status run_cpu(const ExpertsSum& step, const Context& context) {
  return typed(step.dtype, [&](auto tag) { sum_slots<typename decltype(tag)::type>(step, context); });
}

Status run_cpu(const ExpertsGateBackward& step, const Context& context) {
  return typed(step.dtype, [&](auto tag) {
    const GateBackward<typename decltype(tag)::type> backward(step);
    activations::dispatch(step.gate.activation, [&](auto activation) {
      const int64_t cost = kGateCost * 2 * step.gate.size / kBlock + step.dy_size / 8 + 30;
      context.parallel_for(step.groups.count, cost, [&](int64_t begin, int64_t end) {
        cpu::run_widest([&] {
          for (int64_t row = begin; row < end; ++row) backward.template run_row<decltype(activation)>(row);
        });
      });
    });
  });
}

Status run_cpu(const ExpertsBiasGradient& step, const Context& context) {
  return typed(step.dtype, [&](auto tag) { bias_gradient<typename decltype(tag)::type>(step, context); });
}

}  // namespace fusedops
