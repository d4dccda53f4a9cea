// Semaphores that order the additions of a launch's blocks to the same memory.
#pragma once

#include <cuda_runtime.h>

namespace fusedops::cuda {

// The number of this block in launch order. Waiting for smaller numbers cannot deadlock. Called by one thread.
__device__ inline int take_number(int* next) { return atomicAdd(next, 1); }

// Increments the semaphore with release order. Called by one thread, after a barrier behind all threads' additions.
__device__ inline void signal(int* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

// The semaphore's value with acquire order: the additions of all counted blocks are visible.
__device__ inline int peek(const int* counter) {
  int done;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(done) : "l"(counter) : "memory");
  return done;
}

}  // namespace fusedops::cuda
