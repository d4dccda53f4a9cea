// The kernels in which a block of logits is computed and used at once.
#pragma once

#include "ops/loss/linear_cross_entropy.h"

namespace fusedops::cuda {

inline constexpr int64_t kFineColumns = 128;  // of a tile of those kernels
inline constexpr double kMostCap = 64;        // beyond, their tanh would err by more than the sums do

FUSEDOPS_HD int64_t fine_tiles(int64_t columns) { return (columns + kFineColumns - 1) / kFineColumns; }

// Compute capability 9.x, columns that 8 divides, matrices that TMA can address, and a soft cap of at most kMostCap:
// see takes_sm90 in linear_cross_entropy.cu. The first writes the sums of each fine tile, [rows, fine tiles], the
// second dz, [rows, columns].
template <class T>
Status sum_logits_sm90(const LossRows<float>& losses, const Matmul& product, const LogitBlock<T>& block,
                       RowSums<float>* fine, float* label_logits, const Context& context);
template <class T>
Status differentiate_logits_sm90(const LossGradient<float>& gradient, const Matmul& product, const LogitBlock<T>& block,
                                 T* dz, const Context& context);

}  // namespace fusedops::cuda
