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

// How many are done by now. A thread that has seen a block among them sees all that block added before its signal.
__device__ inline int peek(const int* counter) {
  int done;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(done) : "l"(counter) : "memory");
  return done;
}

}  // namespace fusedops::cuda
