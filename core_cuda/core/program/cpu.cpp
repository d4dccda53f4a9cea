// The CPU engine of programs: an interpreter that runs each instruction as a loop over a tile of elements in the L1
// cache.
//
// Limit: memory bandwidth, or arithmetic in long programs.
#include <algorithm>
#include <cstring>

#include "core/cpu/sum.h"
#include "core/program/geometry.h"
#include "core/program/interpreter/elements.h"
#include "core/program/interpreter/folds.h"
#include "core/program/interpreter/pass.h"
#include "core/program/interpreter/worker.h"

namespace fusedops::program {
namespace {

using namespace interpreter;

// One bit per wanted result. Numbers have no gradient.
uint32_t wanted_results(const Call& call) {
  const Program& program = program_of(call.op);
  uint32_t wanted = 0;
  for (size_t i = 0; i < program.results.size(); ++i) {
    const int like = program.results[i].like;
    if (program.is_wanted(call, i) && (like < 0 || call.inputs[like])) wanted |= uint32_t(1) << i;
  }
  return wanted;
}

// Calls body(pass) for each pass that is not empty.
template <class Body>
void for_passes(const Call& call, const Geometry& geometry, uint32_t wanted, Body&& body) {
  uint32_t left = (uint32_t(1) << program_of(call.op).results.size()) - 1;
  while (left & wanted) {
    Pass pass(call, geometry, wanted, left);
    if (pass.wanted) body(pass);
  }
}

int64_t cost_ns(const Pass& pass, int64_t elements) { return 20 + pass.plan->cost * elements / kTile; }

// Columns narrower than the compute type are widened once, and repeated for tiles of several rows.
template <class A>
void copy_columns(const Pass& pass) {
  for (const int i : pass.plan->inputs) {
    A* const copy = static_cast<A*>(const_cast<void*>(pass.inputs[i].copy));
    if (!copy) continue;
    const View& view = *pass.call.inputs[i];
    constexpr int64_t kNanosecondsPerTile = 300;
    pass.call.context.parallel_for(pass.blocks, kNanosecondsPerTile, [&](int64_t begin, int64_t end) {
      with_input_type<A>(view.dtype, [&](auto tag) {
        const auto* const from = static_cast<const typename decltype(tag)::type*>(view.data);
        const int64_t first = begin * pass.tile, last = std::min(end * pass.tile, pass.cols);
        read(from + first, copy + first, last - first);
      });
    });
    for (int64_t row = 1; row < pass.tile_rows; ++row) std::copy_n(copy, pass.cols, copy + row * pass.cols);
  }
}

// Computes the reductions of all rows, stage by stage.
template <class A>
void run_stages(const Pass& pass) {
  for (size_t i = 0; i + 1 < pass.plan->stages.size(); ++i) {
    pass.call.context.parallel_for(pass.rows * pass.blocks, cost_ns(pass, kTile), [&](int64_t begin, int64_t end) {
      Worker<A> worker(pass);
      for (int64_t item = begin; item < end; ++item)
        worker.run_terms(static_cast<int>(i), item / pass.blocks, item % pass.blocks);
    });
    for (const int reduction : pass.plan->stages[i].reductions) {
      const Fold fold = pass.op.program.reductions[reduction].fold;
      for (int64_t row = 0; row < pass.rows; ++row) {
        const double* const folds = pass.block_folds + (reduction * pass.rows + row) * pass.blocks;
        double total = folds[0];
        for (int64_t block = 1; block < pass.blocks; ++block) total = joined(fold, total, folds[block]);
        static_cast<A*>(pass.row_folds)[reduction * pass.rows + row] = static_cast<A>(finished(fold, total, pass.cols));
      }
    }
  }
}

template <class A>
void run_chunks(const Pass& pass) {
  const int64_t chunks = pass.kept * pass.chunks;
  const int64_t rows = std::min(pass.chunk_tiles * pass.tile_rows, pass.folded);
  if (pass.plan->reduces() && !pass.stagewise) {
    pass.call.context.parallel_for(chunks, cost_ns(pass, rows * pass.cols), [&](int64_t begin, int64_t end) {
      Worker<A> worker(pass);
      for (int64_t chunk = begin; chunk < end; ++chunk) worker.run_chunk(chunk);
      worker.finish();
    });
    return;
  }
  const int64_t cost = cost_ns(pass, rows * std::min(pass.cols, pass.tile));
  pass.call.context.parallel_for(chunks * pass.blocks, cost, [&](int64_t begin, int64_t end) {
    Worker<A> worker(pass);
    for (int64_t item = begin; item < end; ++item) worker.run_chunk(item / pass.blocks, item % pass.blocks);
    worker.finish();
  });
}

// out[j] = the sum of column j of the partial sums of each group.
template <class T, class A>
void sum_columns(const Pass& pass, const PassResult& result, T* out) {
  using fusedops::cpu::kColumns;
  const int64_t groups = result.all_rows ? 1 : pass.kept, count = pass.kept * pass.chunks / groups;
  const int64_t blocks = (pass.cols + kColumns - 1) / kColumns, cost = 50 + 20 * count;
  pass.call.context.parallel_for(groups * blocks, cost, [&](int64_t begin, int64_t end) {
    A sums[kColumns];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t group = item / blocks, start = item % blocks * kColumns, n = std::min(kColumns, pass.cols - start);
      const A* const partials = static_cast<const A*>(result.partials) + group * count * pass.cols + start;
      fusedops::cpu::pairwise_columns(partials, count, pass.cols, n, sums);
      for (int64_t j = 0; j < n; ++j) out[group * pass.cols + start + j] = from_compute<T>(sums[j]);
    }
  });
}

template <class T, class A>
void sum_groups(const Pass& pass, const PassResult& result, T* out) {
  const bool by_row = result.sum == Sum::rows && result.all_rows;
  const int64_t groups = by_row ? pass.rows : (result.sum == Sum::rows ? pass.kept : 1);
  const int64_t count = (result.sum == Sum::rows ? pass.rows : pass.kept * pass.tiles) * pass.blocks / groups;
  pass.call.context.parallel_for(groups, 20 + count / 4, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      const A sum = fusedops::cpu::pairwise_sum(static_cast<const A*>(result.partials) + group * count, count);
      out[by_row ? result.offsets.offset(group) : group] = from_compute<T>(sum);
    }
  });
}

template <class A>
void run_pass(const Pass& pass) {
  copy_columns<A>(pass);
  if (pass.stagewise) run_stages<A>(pass);
  run_chunks<A>(pass);
  for (size_t i = 0; i < pass.op.program.results.size(); ++i) {
    const PassResult& result = pass.results[i];
    if (!(pass.wanted >> i & 1) || !result.partials) continue;
    const View& out = pass.call.outputs[i];
    with_type<A>(out.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if (result.sum == Sum::columns)
        sum_columns<T, A>(pass, result, static_cast<T*>(out.data));
      else
        sum_groups<T, A>(pass, result, static_cast<T*>(out.data));
    });
  }
}

// Writes empty sums.
void clear(const Call& call, uint32_t wanted) {
  for (size_t i = 0; i < call.op.outputs.size(); ++i) {
    const View& out = call.outputs[i];
    if (const int64_t n = wanted >> i & 1 ? out.numel() : 0; n > 0) std::memset(out.data, 0, n * size_of(out.dtype));
  }
}

}  // namespace

size_t workspace(const Call& call) {
  if (call.context.cuda) return cuda_workspace(call);
  Geometry geometry;
  // cpu() returns the error of an invalid geometry
  if (!Geometry::of(call, &geometry).ok() || !geometry.has_work(program_of(call.op))) return 0;
  size_t bytes = 0;
  for_passes(call, geometry, wanted_results(call),
             [&](Pass& pass) { bytes = std::max(bytes, pass.place(geometry, nullptr)); });
  return bytes;
}

Status cpu(const Call& call) {
  Geometry geometry;
  FUSEDOPS_TRY(Geometry::of(call, &geometry));
  const uint32_t wanted = wanted_results(call);
  if (!geometry.has_work(program_of(call.op))) {
    clear(call, wanted);
    return {};
  }
  for_passes(call, geometry, wanted, [&](Pass& pass) {
    pass.place(geometry, call.workspace);
    if (pass.compute == DType::f64)
      run_pass<double>(pass);
    else
      run_pass<float>(pass);
  });
  return {};
}

}  // namespace fusedops::program
