// Blocks of one launch that add to the same memory, one after the other: a counter says how many have done so.
#pragma once

#include <cuda_runtime.h>

namespace fusedops::cuda {

// The number of this block in the order in which blocks start: one that waits for smaller numbers cannot hang. Called
// by one thread.
__device__ inline int take_number(int* next) { return atomicAdd(next, 1); }

// One more is done. Called by one thread, after a barrier behind the additions of all.
__device__ inline void signal(int* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

// Waits until `count` are done. Called by one thread, before a barrier in front of the additions of all.
__device__ inline void wait_for(const int* counter, int count) {
  int done;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(done) : "l"(counter) : "memory");
  } while (done < count);
}

// to[0] += first, to[1] += second, without waiting for the result; `to` is 8-byte aligned. Subnormal terms and sums
// become zeros: so the GPU adds to global memory.
__device__ inline void add_pair(float* to, float first, float second) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(first), "f"(second) : "memory");
#else
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(first) : "memory");
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + 1), "f"(second) : "memory");
#endif
}

}  // namespace fusedops::cuda
