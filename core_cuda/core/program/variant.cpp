#include "core/program/variant.h"

#include <algorithm>
#include <bit>

#include "core/common/ceil_div.h"

namespace fusedops::program {
namespace {

constexpr int kMaxHeld = 4;

constexpr int64_t kEnoughBlocks = 1024;  // fill the largest GPU

bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

Type type_of(const View& view, DType element) {
  switch (view.dtype) {
    case DType::boolean:
      return kBoolean;
    case DType::u8:
      return kUint8;
    case DType::i8:
      return kInt8;
    case DType::i16:
      return kInt16;
    case DType::i32:
      return kInt32;
    case DType::i64:
      return kInt64;
    default:
      return view.dtype == DType::f32 && size_of(element) == 2 ? kFloat32 : kElement;
  }
}

class Planner {
 public:
  Planner(const Call& call, LaunchPlan& plan)
      : call_(call), program_(program_of(call.op)), plan_(plan), g_(plan.geometry), v_(plan.variant) {}

  void plan() {
    v_.dtype = element_dtype(call_);
    pack_ = static_cast<int64_t>(16 / size_of(v_.dtype));
    packs_ = ceil_div(g_.cols, pack_);
    v_.dims = static_cast<uint16_t>(g_.dims);
    read_inputs();
    if (needs_whole_rows())
      assign_rows();
    else
      assign_columns();
    read_results();
    assign_row_chunks();
    find_late_inputs();
    v_.blocks = static_cast<uint16_t>(std::clamp<int64_t>(threads_at_once() / v_.threads, 1, 32));
    place_sums();
    settle_alignment();
  }

 private:
  bool is_wanted(size_t result) const {
    return program_.is_wanted(call_, result) && walk(result).access != Access::number;
  }

  const Walk& walk(size_t result) const { return g_.of(program_.results[result]); }

  bool has_sums(Access access) const {
    for (size_t i = 0; i < program_.results.size(); ++i)
      if (is_wanted(i) && walk(i).access == access) return true;
    return false;
  }

  bool needs_whole_rows() const {
    if (!program_.reductions.empty()) return true;
    for (size_t i = 0; i < program_.results.size(); ++i) {
      const Walk& walk = this->walk(i);
      if (is_wanted(i) && (walk.access == Access::row || (walk.access == Access::some && !walk.along_columns)))
        return true;
    }
    return false;
  }

  void read_inputs() {
    for (size_t i = 0; i < call_.op.inputs.size(); ++i) {
      v_.input[i] = g_.inputs[i].access;
      v_.along_columns[i] = g_.inputs[i].along_columns;
      if (call_.inputs[i]) v_.input_type[i] = type_of(*call_.inputs[i], v_.dtype);
    }
  }

  // Assigns a row to part of a warp, to a warp or to a block.
  void assign_rows() {
    plan_.tiles = 1;
    if (packs_ <= 32) {
      share(256, static_cast<int>(std::bit_ceil(static_cast<uint64_t>(packs_))), 1);
    } else if (packs_ <= 32 * kMaxHeld) {
      share(256, 32, static_cast<int>(ceil_div(packs_, 32)));
    } else {
      const bool sums = has_sums(Access::column);
      int threads = 128;
      while (threads < 1024 && packs_ > (sums && threads < 256 ? 2 : kMaxHeld) * threads) threads *= 2;
      const int64_t held = ceil_div(packs_, threads);
      v_.chunked = held > kMaxHeld;
      share(threads, threads, static_cast<int>(v_.chunked ? 2 : held));
    }
  }

  // Assigns a tile of columns to a block, if columns are independent.
  void assign_columns() {
    const int across = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(packs_, 1, 256))));
    share(256, across, g_.rows == 1 && has_sums(Access::single) ? kMaxHeld : 1);
    plan_.tiles = ceil_div(packs_, int64_t(v_.across) * v_.held);
  }

  void share(int threads, int across, int held) {
    v_.threads = static_cast<uint16_t>(threads);
    v_.across = static_cast<uint16_t>(across);
    v_.held = static_cast<uint16_t>(held);
  }

  void read_results() {
    for (size_t i = 0; i < program_.results.size(); ++i) {
      plan_.final_sum[i] = LaunchPlan::FinalSum::none;
      if (!is_wanted(i)) continue;  // Access::number
      const Walk& walk = this->walk(i);
      v_.output[i] = walk.access;
      v_.output_type[i] = type_of(call_.outputs[i], v_.dtype);
      if (program_.results[i].like == kLikeRows && walk.access != Access::full) {
        v_.output[i] = Access::row;
        v_.of_rows[i] = true;
        continue;
      }
      if (walk.access == Access::single) {
        plan_.final_sum[i] = LaunchPlan::FinalSum::partials;
      } else if (walk.access == Access::column && !v_.chunked) {
        plan_.final_sum[i] = LaunchPlan::FinalSum::chunks;
      } else if (walk.access == Access::column || walk.access == Access::some) {
        plan_.final_sum[i] = LaunchPlan::FinalSum::folded;
        v_.output[i] = walk.along_columns ? Access::full : Access::row;
      }
      if (plan_.final_sum[i] != LaunchPlan::FinalSum::none) v_.output_type[i] = kCompute;
    }
  }

  // Chooses row chunks: as many rows as leave enough blocks, since sums over rows stay in registers.
  void assign_row_chunks() {
    const int64_t groups = v_.threads / v_.across, turns = ceil_div(g_.rows, groups);
    const bool sums =
        std::any_of(plan_.final_sum, plan_.final_sum + program_.results.size(), [](LaunchPlan::FinalSum final_sum) {
          return final_sum == LaunchPlan::FinalSum::chunks || final_sum == LaunchPlan::FinalSum::partials;
        });
    const bool has_block_rows = v_.across > 32 && needs_whole_rows();  // fewer of them fill a multiprocessor
    int64_t per_chunk = 1;
    if (sums)
      per_chunk = ceil_div(turns * plan_.tiles, kEnoughBlocks * 256 / (has_block_rows ? 2 * v_.threads : v_.threads));
    else if (program_.reductions.empty())
      per_chunk = std::clamp<int64_t>(turns * plan_.tiles / (8 * kEnoughBlocks), 1, 4);
    plan_.rows_per_chunk = std::max<int64_t>(per_chunk, 1) * groups;
    v_.several = per_chunk > 1;
    v_.tiled = plan_.tiles > 1;
    v_.single_row = g_.rows == 1;
    plan_.chunks = ceil_div(g_.rows, plan_.rows_per_chunk);
  }

  void find_late_inputs() {
    if (program_.reductions.empty() || v_.chunked) return;
    for (size_t i = 0; i < call_.op.inputs.size(); ++i)
      v_.late[i] = v_.along_columns[i] && v_.input[i] != Access::column;
    for (size_t stage = 0; stage + 1 < program_.stages.size(); ++stage)
      for (const Instruction& instruction : program_.stages[stage])
        if (instruction.op == Op::input) v_.late[instruction.a] = false;
  }

  // Resident threads that a multiprocessor's 65536 registers allow, from the registers that a thread's packs need.
  int64_t threads_at_once() const {
    const int64_t pack = pack_ * static_cast<int64_t>(size_of(compute_dtype(v_.dtype))) / 4;
    int64_t registers = needs_whole_rows() ? 32 : 24;
    for (size_t i = 0; i < call_.op.inputs.size(); ++i)
      if (v_.along_columns[i] && !v_.late[i]) registers += v_.held * (v_.input_type[i] == kElement ? 4 : pack);
    for (size_t i = 0; i < program_.results.size(); ++i) {
      if (plan_.final_sum[i] == LaunchPlan::FinalSum::chunks) registers += v_.held * pack;
      if (v_.output[i] == Access::full) registers += 4;
    }
    return 65536 / registers;
  }

  void place_sums() {
    const auto size = static_cast<int64_t>(size_of(compute_dtype(v_.dtype)));
    for (size_t i = 0; i < program_.results.size(); ++i) {
      if (plan_.final_sum[i] == LaunchPlan::FinalSum::none) continue;
      int64_t count = plan_.chunks * (plan_.final_sum[i] == LaunchPlan::FinalSum::chunks ? g_.cols : plan_.tiles);
      if (plan_.final_sum[i] == LaunchPlan::FinalSum::folded)
        count = g_.rows * (v_.output[i] == Access::full ? g_.cols : 1);
      plan_.offset[i] = plan_.workspace;
      plan_.workspace += (count * size + 15) / 16 * 16;
    }
  }

  void settle_alignment() {
    v_.whole = g_.cols % pack_ == 0;
    v_.aligned = v_.whole || g_.rows == 1;
    for (size_t i = 0; i < call_.op.inputs.size(); ++i)
      if (v_.along_columns[i]) v_.aligned = v_.aligned && is_aligned(call_.inputs[i]->data);
    for (size_t i = 0; i < program_.results.size(); ++i)
      if (v_.output[i] == Access::full && plan_.final_sum[i] == LaunchPlan::FinalSum::none)
        v_.aligned = v_.aligned && is_aligned(call_.outputs[i].data);
  }

  const Call& call_;
  const Program& program_;
  LaunchPlan& plan_;
  Geometry& g_;
  Variant& v_;
  int64_t pack_ = 0, packs_ = 0;
};

template <class Item, class Name>
std::string list(const Item* items, size_t count, Name&& name) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::string(name(items[i]));
  return "{" + text + "}";
}

}  // namespace

Status LaunchPlan::make(const Call& call, LaunchPlan* plan) {
  FUSEDOPS_TRY(Geometry::of(call, &plan->geometry));
  Planner(call, *plan).plan();
  return {};
}

size_t cuda_workspace(const Call& call) {
  LaunchPlan plan;
  return LaunchPlan::make(call, &plan).ok() ? static_cast<size_t>(plan.workspace) : 0;
}

std::string Variant::source(const Program& program) const {
  static constexpr const char* kAccess[] = {"number", "single", "column", "row", "full", "some"};
  static constexpr const char* kTypes[] = {"kElement", "kFloat32", "kCompute", "kBoolean", "kUint8",
                                           "kInt8",    "kInt16",   "kInt32",   "kInt64"};
  static constexpr const char* kElements[] = {"double", "float", "f16", "bf16"};
  const auto access = [](Access access) { return std::string("Access::") + kAccess[static_cast<int>(access)]; };
  const auto type = [](Type type) { return kTypes[type]; };
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  // Prints the whole arrays; unused entries are ignored.
  std::string text = size_of(dtype) == 2 ? "#define FUSEDOPS_NARROW\n" : "";
  text += "#include \"core/program/prelude.cuh\"\n\nnamespace fusedops::program {\n\nstruct Variant {\n";
  text += std::string("  using T = ") + kElements[static_cast<int>(dtype)] + ";\n";
  text += "  static constexpr int kThreads = " + std::to_string(threads) + ", kAcross = " + std::to_string(across) +
          ", kHeld = " + std::to_string(held) + ", kDims = " + std::to_string(dims) +
          ", kBlocks = " + std::to_string(blocks) + ";\n";
  text += std::string("  static constexpr bool kAligned = ") + flag(aligned) + ", kWhole = " + flag(whole) +
          ", kChunked = " + flag(chunked) + ", kSingleRow = " + flag(single_row) + ", kSeveral = " + flag(several) +
          ", kTiled = " + flag(tiled) + ";\n";
  text += "  static constexpr Access kInput[] = " + list(input, kMaxInputs, access) + ";\n";
  text += "  static constexpr bool kAlongColumns[] = " + list(along_columns, kMaxInputs, flag) + ";\n";
  text += "  static constexpr bool kLate[] = " + list(late, kMaxInputs, flag) + ";\n";
  text += "  static constexpr Type kInputType[] = " + list(input_type, kMaxInputs, type) + ";\n";
  text += "  static constexpr Access kOutput[] = " + list(output, kMaxOutputs, access) + ";\n";
  text += "  static constexpr Type kOutputType[] = " + list(output_type, kMaxOutputs, type) + ";\n";
  text += "  static constexpr bool kOfRows[] = " + list(of_rows, kMaxOutputs, flag) + ";\n};\n\n";
  return text + program.source + "\n}  // namespace fusedops::program\n\n#include \"core/program/kernel.cuh\"\n";
}

}  // namespace fusedops::program
