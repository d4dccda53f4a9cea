// Asynchronous copies from global to shared memory (cp.async, compute capability 8.0 and later).
#pragma once

#include <cstdint>

namespace fusedops::cuda {

// Copies kBytes; bytes beyond `valid` become zero and are not read. memcheck takes every copy for one of kBytes: the
// instruction holds the number of missing bytes in the low bits of the address.
template <int kBytes>
__device__ void copy_async(void* to, const void* from, int valid) {
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(valid) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(from), "n"(kBytes), "r"(valid)
                 : "memory");
}

// Copies 16 valid bytes, with fewer instructions.
__device__ inline void copy_async_whole(void* to, const void* from) {
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the latest kPending groups of this thread's copies are complete.
template <int kPending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fusedops::cuda
