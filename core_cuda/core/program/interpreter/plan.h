// A program as the interpreter runs it: the instructions that the wanted results need, in the order in which they run
// on a tile of rows and columns.
//
// A value is one number for the call, one for each row of the tile, or one for each element; it is computed as few
// times as that. Each has a place, where the interpreter keeps it. Places of elements are used again as soon as no
// instruction needs them any more, so that few of them take part and stay in the first-level cache.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/program.h"

namespace fusedops::program::interpreter {

enum class Level : uint8_t { call, row, element };

enum class Do : uint8_t {
  constant,  // to = value
  load,      // to = input `which`
  compute,   // to = the loop `which` of a, b, c
  expand,    // to, which is of elements = a, which is not
  fold,      // adds a to reduction `which`
  give,      // a is result `which`
};

struct Step {
  Do what;
  int which = 0;
  int a = 0, b = 0, c = 0, to = 0;  // places
  double value = 0;
  bool again = false;    // load: an earlier stage has done so
  bool product = false;  // fold: of a * b
  bool by_row = false;   // compute: some of a, b, c are of rows, which are taken one after the other
  Level levels[3] = {Level::element, Level::element, Level::element};  // of a, b, c
  int given = -1;                                                      // compute: the result that `to` is as well
};

struct Stage {
  std::vector<Step> of_level[3];
  std::vector<int> reductions;  // which the stage folds
};

// What a plan depends on.
struct Traits {
  uint32_t wanted;           // a bit for each result
  bool short_rows;           // several in a tile, too short to be taken one after the other
  Level inputs[kMaxInputs];  // of the operator's inputs
};

struct Plan {
  uint64_t key;
  const Plan* next = nullptr;  // of the program's others

  std::vector<Stage> stages;  // those that are needed; the last one gives the results
  std::vector<int> inputs;    // that are loaded for rows or elements
  uint32_t read_again = 0;    // a bit for each input whose elements several stages load
  std::vector<int> reduced;   // the place of each reduction, whose values are of rows; -1: not needed
  int places[3] = {};         // how many there are of each level; those of the call come first, then those of rows
  int64_t cost = 0;           // of 1024 elements, in nanoseconds

  bool reduces() const { return stages.size() > 1; }

  // Made at its first use, and kept as long as the operator.
  static const Plan& of(const ProgramOperator& op, const Traits& traits);
};

}  // namespace fusedops::program::interpreter
