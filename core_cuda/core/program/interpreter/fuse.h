// Fuses pairs of instructions into one loop where nothing else reads the first one's value. Each operation still rounds
// separately; fused multiply-adds are instructions of the program.
#pragma once

#include <vector>

#include "core/program/interpreter/plan.h"

namespace fusedops::program::interpreter {

// The instructions of a stage, and the levels of their values.
struct StageCode {
  std::vector<Instruction> instructions;
  std::vector<bool> needed;
  std::vector<Level> levels;
};

// The pairs do not depend on the wanted results, nor do the bits of the results.
void fuse(const Program& program, int stage, StageCode& code);

}  // namespace fusedops::program::interpreter
