// Fused kernels that compute a block of logits and reduce it in the epilogue.
#pragma once

#include "core/declaration/dispatch.h"
#include "ops/loss/linear_cross_entropy.h"
#include "ops/products/matmul_dispatch.h"

namespace fusedops::cuda {

inline constexpr int64_t kFineColumns = 128;  // columns of a tile of these kernels
inline constexpr double kMaxCap = 64;         // beyond, the error of their tanh exceeds that of the sums

FUSEDOPS_HD int64_t fine_tiles(int64_t columns) { return (columns + kFineColumns - 1) / kFineColumns; }

// Logits of a block of columns: in registers, or as sums in the workspace.
enum class LogitsKernel { sm90, materialized };

struct LogitsProblem {
  const Matmul& product;
  double softcap;
  const void* dz;  // null in the forward
};

using LogitsEntry = DispatchEntry<LogitsKernel, LogitsProblem>;
inline constexpr LogitsEntry kLogits[] = {
    {LogitsKernel::sm90, "sm90 logits in registers 128x128",
     [](const LogitsProblem& problem, const GpuProperties& gpu) {
       const Matmul& product = problem.product;
       return gpu.has_sm90_kernels && size_of(product.dtype) == 2 && problem.softcap <= kMaxCap &&
              can_tma_load_and_store(product) && !is_small(product) && product.k > 0 &&
              reinterpret_cast<uintptr_t>(problem.dz) % 16 == 0;
     },
     "aligned, enough tiles for a large GPU"},
    {LogitsKernel::materialized, "blocks of logits", [](const LogitsProblem&, const GpuProperties&) { return true; },
     "float32 or float64, misaligned rows, few tiles, or a large soft cap"},
};

// The forward stores the sums of each fine tile, [rows, fine tiles]; the backward stores dz, [rows, columns].
template <class T>
Status sum_logits_sm90(const LossRows<float>& losses, const Matmul& product, const LogitBlock<T>& block,
                       RowStats<float>* fine, float* label_logits, const Context& context);
template <class T>
Status differentiate_logits_sm90(const LossGradient<float>& gradient, const Matmul& product, const LogitBlock<T>& block,
                                 T* dz, const Context& context);

}  // namespace fusedops::cuda
