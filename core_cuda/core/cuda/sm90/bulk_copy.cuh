// Bulk copies and reductions from shared to global memory without tensor maps, and flags that order them among blocks.
#pragma once

#include <cstdint>

namespace fusedops::cuda::sm90 {

// A flag orders the bulk writes of this block before another block's bulk reads or reductions.
__device__ inline int load_acquire(const int* flag) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__device__ inline void store_release(int* flag, int value) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ inline void fence_proxies() { asm volatile("fence.proxy.async;" ::: "memory"); }
// The same for global memory alone, without a membar.gpu.
__device__ inline void fence_global_proxies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ inline void store_bulk(float* to, const float* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))), "r"(bytes)
               : "memory");
}
__device__ inline void add_bulk(float* to, const float* from, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))), "r"(bytes)
               : "memory");
}
__device__ inline void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until the copies have read shared memory.
__device__ inline void wait_for_bulk_reads() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Waits until the copies are complete.
__device__ inline void wait_for_bulk() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace fusedops::cuda::sm90
