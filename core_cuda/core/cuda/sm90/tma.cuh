// TMA, the bulk tensor copy engine of compute capability 9.0. It copies boxes of a tensor between global memory and a
// SwizzledTile in shared memory.
#pragma once

#include <array>
#include <string>

#include "core/cuda/launch.cuh"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cutlass/cuda_host_adapter.hpp"

namespace fusedops::cuda::sm90 {

// A tensor of 16-bit elements and the box of one copy. The first dimension has unit stride; `strides` are those of the
// others, in bytes, multiples of 16. Elements out of bounds are read as zeros and not written.
template <int kRank>
struct Boxes {
  const void* data;
  std::array<cuuint64_t, kRank> sizes;
  std::array<cuuint64_t, kRank - 1> strides;
  std::array<cuuint32_t, kRank> box;  // the first: kPanel of the SwizzledTile

  Status describe(CUtensorMap* map, CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B) const {
    std::array<cuuint32_t, kRank> element_strides;
    element_strides.fill(1);
    const auto swizzle = box[0] == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
    const auto encode = [&] {
      return CUTLASS_CUDA_DRIVER_WRAPPER_CALL(cuTensorMapEncodeTiled)(
          map, CU_TENSOR_MAP_DATA_TYPE_UINT16, kRank, const_cast<void*>(data), sizes.data(), strides.data(), box.data(),
          element_strides.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    CUresult error = encode();
    if (error == CUDA_ERROR_INVALID_CONTEXT || error == CUDA_ERROR_NOT_INITIALIZED) {
      // The thread may have no current context, for example because another library popped it.
      int device = 0;
      FUSEDOPS_TRY(check(cudaGetDevice(&device), "cudaGetDevice"));
      FUSEDOPS_TRY(check(cudaSetDevice(device), "cudaSetDevice"));
      error = encode();
    }
    if (error == CUDA_SUCCESS) return {};
    return Status::error("fusedops: cuTensorMapEncodeTiled failed with error ", std::to_string(int(error)));
  }
};

// L2 promotion to 256 bytes, for lines aligned to 128 bytes. For other lines it would load bytes beyond their ends.
inline CUtensorMapL2promotion promotion_of(cuuint64_t line_stride) {
  return line_stride % 128 == 0 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
}

inline constexpr auto kCacheHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);

}  // namespace fusedops::cuda::sm90
