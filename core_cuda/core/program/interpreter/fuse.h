// Pairs of instructions that the interpreter runs as one loop, where nothing else reads the first one's value. Each
// operation still rounds separately; fused multiply-adds are instructions of the program.
#pragma once

#include <vector>

#include "core/program/interpreter/plan.h"

namespace fusedops::program::interpreter {

// What a stage computes, with these of its instructions and levels of their values.
struct StageCode {
  std::vector<Instruction> instructions;
  std::vector<bool> needed;
  std::vector<Level> levels;
};

// Which pairs there are does not depend on what is needed: nor do the bits of the results.
void fuse(const Program& program, int stage, StageCode& code);

}  // namespace fusedops::program::interpreter
