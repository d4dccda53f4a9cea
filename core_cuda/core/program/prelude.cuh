// Declarations for a program's generated C++ under NVRTC. kernel.cuh follows it.
#pragma once

#include "core/common/element.h"
#include "core/program/arguments.h"
#include "core/program/functions.h"
#include "core/program/integers.h"

#define FN __device__ __forceinline__

namespace fusedops::program {

enum { kSum, kMean, kMax, kMin };

struct Reduction {
  int kind, stage;
};

}  // namespace fusedops::program
