// A program as the interpreter runs it: the instructions that the wanted results need, in the order in which they run
// on a tile.
//
// A value is one number per call, per row of the tile, or per element, and is computed once at that level. Each has a
// place in memory. Places of elements are reused after their last use, so that the few in use stay in the L1 cache.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/program.h"

namespace fusedops::program::interpreter {

enum class Level : uint8_t { call, row, element };

enum class StepKind : uint8_t {
  constant,  // to = value
  load,      // to = input `which`
  compute,   // to = the loop `which` of a, b, c
  expand,    // to (elements) = a (call or row)
  fold,      // adds a to reduction `which`
  store,     // a is result `which`
};

struct PlanStep {
  StepKind kind;
  int which = 0;
  int a = 0, b = 0, c = 0, to = 0;  // places
  double value = 0;
  bool again = false;    // load: an earlier stage loaded it, too
  bool product = false;  // fold: sums a * b
  bool by_row = false;   // compute: some of a, b, c are row values, so rows are processed one by one
  Level levels[3] = {Level::element, Level::element, Level::element};  // of a, b, c
  int stored = -1;                                                     // compute: a result that is written to `to`
};

struct Stage {
  std::vector<PlanStep> of_level[3];
  std::vector<int> reductions;  // folded in this stage
};

// The properties of a call that a plan depends on.
struct Traits {
  uint32_t wanted;           // one bit per result
  bool short_rows;           // several rows per tile, too short to be processed one by one
  Level inputs[kMaxInputs];  // of the operator's inputs
};

struct Plan {
  uint64_t key;
  const Plan* next = nullptr;  // the next plan of the same program

  std::vector<Stage> stages;  // the needed stages; the last one computes the results
  std::vector<int> inputs;    // loaded for rows or elements
  uint32_t read_again = 0;    // one bit per input whose elements several stages load
  std::vector<int> reduced;   // the place of each reduction's row values; -1: not needed
  int places[3] = {};         // number of places per level: those of the call come first, then those of rows
  int64_t cost = 0;           // nanoseconds for 1024 elements

  bool reduces() const { return stages.size() > 1; }

  // Built at the first use, and owned by the operator.
  static const Plan& of(const ProgramOperator& op, const Traits& traits);
};

}  // namespace fusedops::program::interpreter
