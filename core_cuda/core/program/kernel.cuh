// The kernel of a program. NVRTC compiles it behind two structs: `Program`, the computation, which the Python package
// generates from an expression, and `Variant`, which cuda.cu generates from the tensors of a call.
//
// A block processes a tile of columns and walks the rows of a chunk. A thread holds kHeld packs of a row; kAcross
// threads share a row, and a block processes kThreads / kAcross rows at a time. Limit: memory bandwidth. A row is read
// once, unless it is too long to be held; sums over rows stay in registers until the end of the chunk.
#include "core/program/prelude.cuh"

namespace fusedops::program {

using V = Variant;
using A = compute_t<V::T>;

constexpr int kPack = 16 / sizeof(V::T);
constexpr int kGroups = V::kThreads / V::kAcross;
constexpr int kWarps = V::kThreads / 32;
constexpr int kMaxWords = kPack * sizeof(A) / 4;  // per pack of the compute type
constexpr int kAhead = !V::kSeveral || V::kChunked || Program::kStages ? 1 : 2;
constexpr int kInputs = Program::kInputs, kOutputs = Program::kOutputs, kReductions = Program::kReductions;

template <int kValue>
struct Index {
  static constexpr int value = kValue;
};

// Calls body(Index<i>()) for i in [kBegin, kEnd).
template <int kBegin, int kEnd, class Body>
FN void for_each(Body&& body) {
  if constexpr (kBegin < kEnd) {
    body(Index<kBegin>());
    for_each<kBegin + 1, kEnd>(body);
  }
}

// The C++ type of the elements in memory.
template <Type kType>
struct Stored {
  using type = V::T;
};
template <>
struct Stored<kFloat32> {
  using type = float;
};
template <>
struct Stored<kCompute> {
  using type = A;
};
template <>
struct Stored<kBoolean> {
  using type = Boolean;
};
template <>
struct Stored<kUint8> {
  using type = uint8_t;
};
template <>
struct Stored<kInt8> {
  using type = int8_t;
};
template <>
struct Stored<kInt16> {
  using type = int16_t;
};
template <>
struct Stored<kInt32> {
  using type = int32_t;
};
template <>
struct Stored<kInt64> {
  using type = int64_t;
};
template <Type kType>
using ElementOf = typename Stored<kType>::type;

// The type of elements in registers. Booleans and integers are converted when they are loaded.
template <class E>
using Held = std::conditional_t<is_integral_element<E>, A, E>;

// True if the input has columns.
template <int kInput>
constexpr bool kAlongColumns = V::kAlongColumns[kInput];
template <int kInput>
constexpr bool kIsSome = V::kInput[kInput] == Access::some;

// Packs are words in registers: an array of elements might be put into local memory.
template <class E>
FN A element(const uint32_t* words, int i) {
  if constexpr (std::is_same_v<E, bf16>) {
    return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000 : words[i / 2] << 16);
  } else if constexpr (sizeof(E) == 2) {
    const uint16_t bits = i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xffff;
    return to_compute(E{bits});
  } else if constexpr (sizeof(E) == 4) {
    return A(__uint_as_float(words[i]));
  } else {
    return A(__hiloint2double(words[2 * i + 1], words[2 * i]));
  }
}

// Stores an element in a pack of the compute type.
FN void put(A value, int i, uint32_t* words) {
  if constexpr (sizeof(A) == 4) {
    words[i] = __float_as_uint(value);
  } else {
    words[2 * i] = __double2loint(value), words[2 * i + 1] = __double2hiint(value);
  }
}

// load_pack() for booleans and integers.
template <class E, class Count>
FN void load_integers(const E* from, Count count, uint32_t* words) {
  if (V::kAligned && (V::kWhole ? count > 0 : count >= kPack)) {
    // The pack is aligned to its own size.
    constexpr int kElements = sizeof(E) * kPack > 16 ? 16 / sizeof(E) : kPack;
    struct alignas(sizeof(E) * kElements) Part {
      E elements[kElements];
    };
#pragma unroll
    for (int first = 0; first < kPack; first += kElements) {
      const Part part = *reinterpret_cast<const Part*>(from + first);
#pragma unroll
      for (int i = 0; i < kElements; ++i) put(value_of<A>(part.elements[i]), first + i, words);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    A value = 0;
    if constexpr (!(V::kAligned && V::kWhole))
      if (i < count) value = value_of<A>(from[i]);
    put(value, i, words);
  }
}

// Loads elements [0, count) of a pack, followed by zeros.
template <class E, class Count>
FN void load_pack(const E* from, Count count, uint32_t* words) {
  constexpr int kWords = kPack * sizeof(E) / 4;
  if (V::kAligned && (V::kWhole ? count > 0 : count >= kPack)) {
#pragma unroll
    for (int w = 0; w < kWords; w += 4) {
      const uint4 part = __ldg(reinterpret_cast<const uint4*>(from) + w / 4);
      words[w] = part.x, words[w + 1] = part.y, words[w + 2] = part.z, words[w + 3] = part.w;
    }
    return;
  }
#pragma unroll
  for (int w = 0; w < kWords; ++w) words[w] = 0;
  if constexpr (!(V::kAligned && V::kWhole)) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if (i >= count) continue;
      if constexpr (sizeof(E) == 2) {
        words[i / 2] |= uint32_t(from[i].bits) << (i % 2 * 16);
      } else if constexpr (sizeof(E) == 4) {
        words[i] = __float_as_uint(from[i]);
      } else {
        words[2 * i] = __double2loint(from[i]), words[2 * i + 1] = __double2hiint(from[i]);
      }
    }
  }
}

// Two 16-bit elements in a word, rounded to nearest even.
FN uint32_t rounded_word(bf16, float low, float high) {
#if __CUDA_ARCH__ >= 800
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  return from_compute<bf16>(low).bits | uint32_t(from_compute<bf16>(high).bits) << 16;
#endif
}
FN uint32_t rounded_word(f16, float low, float high) {
  return from_compute<f16>(low).bits | uint32_t(from_compute<f16>(high).bits) << 16;
}

template <class E, class Count>
FN void store_pack(E* to, Count count, const A (&values)[kPack]) {
  if (V::kAligned && (V::kWhole ? count > 0 : count >= kPack)) {
    constexpr int kWords = kPack * sizeof(E) / 4;
    uint32_t words[kWords];
    if constexpr (sizeof(E) == 2) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[w] = rounded_word(E(), values[2 * w], values[2 * w + 1]);
    } else if constexpr (sizeof(E) == 4) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[w] = __float_as_uint(values[w]);
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        words[2 * i] = __double2loint(values[i]), words[2 * i + 1] = __double2hiint(values[i]);
    }
#pragma unroll
    for (int w = 0; w < kWords; w += 4)
      reinterpret_cast<uint4*>(to)[w / 4] = make_uint4(words[w], words[w + 1], words[w + 2], words[w + 3]);
    return;
  }
  if constexpr (!(V::kAligned && V::kWhole)) {
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      if (i < count) to[i] = from_compute<E>(values[i]);
  }
}

template <int kKind>
FN A folded(A a, A b) {
  if constexpr (kKind == kMax) return max_(a, b);
  if constexpr (kKind == kMin) return min_(a, b);
  return add_(a, b);
}

template <int kKind>
FN A neutral() {
  if constexpr (kKind == kMax) return A(-INFINITY);
  if constexpr (kKind == kMin) return A(INFINITY);
  return A(0);
}

// Reduces over `kWidth` neighbouring lanes. All get the same bits, since a + b is commutative.
template <int kKind, int kWidth>
FN A fold_lanes(A value) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2)
    value = folded<kKind>(value, __shfl_xor_sync(0xffffffff, value, offset));
  return value;
}

// Reduces over the threads of a row. A block that shares a row alternates between two buffers for the warps' results,
// so one barrier keeps a warp from overwriting values that another has not read.
template <int kKind>
FN A fold_row(A value, A (*places)[kWarps], int& buffer) {
  value = fold_lanes<kKind, (V::kAcross < 32 ? V::kAcross : 32)>(value);
  if constexpr (V::kAcross > 32) {
    A* const place = places[buffer];
    buffer ^= 1;
    if (threadIdx.x % 32 == 0) place[threadIdx.x / 32] = value;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    value = fold_lanes<kKind, 32>(lane < kWarps ? place[lane] : neutral<kKind>());
  }
  return value;
}

class Kernel {
 public:
  FN explicit Kernel(const Arguments& arguments)
      : a(arguments),
        across(kGroups > 1 ? threadIdx.x % V::kAcross : threadIdx.x),
        group(kGroups > 1 ? threadIdx.x / V::kAcross : 0) {}

  FN void run() {
    if constexpr (V::kSingleRow) {
      tile_ = blockIdx.x;
      prepare();
      compute_row(0, group == 0);
      finish(0);
      return;
    }
    // In 32 bits: a 64-bit division takes as long as the rest of a short program.
    const uint32_t row_chunk = V::kTiled ? blockIdx.x / uint32_t(a.tiles) : blockIdx.x;
    tile_ = V::kTiled ? blockIdx.x - row_chunk * uint32_t(a.tiles) : 0;
    const int64_t begin = row_chunk * a.rows_per_chunk;
    const int64_t end = begin + a.rows_per_chunk < a.rows ? begin + a.rows_per_chunk : a.rows;
    prepare();
    // Loads of several rows can be in flight if nothing waits for a whole row.
#pragma unroll kAhead
    for (int64_t first = begin; first < end; first += kGroups) compute_row(first + group, first + group < end);
    finish(row_chunk);
  }

 private:
  // The type of a column; held rows have small indices.
  using Column = std::conditional_t<V::kTiled || V::kChunked, int64_t, int>;

  FN Column column(Column chunk, int held) const {
    return (((Column(tile_) + chunk) * V::kHeld + held) * V::kAcross + across) * kPack;
  }

  FN Column columns() const { return static_cast<Column>(a.columns); }

  FN Column chunks() const {
    constexpr int64_t kColumns = int64_t(V::kHeld) * V::kAcross * kPack;
    return V::kChunked ? (a.columns + kColumns - 1) / kColumns : 1;
  }

  // Loads the values that all rows share.
  FN void prepare() {
    for_each<0, kInputs>([&](auto i) {
      constexpr Access kAccess = V::kInput[i.value];
      using E = ElementOf<V::kInputType[i.value]>;
      if constexpr (kAccess == Access::number) uniform_[i.value] = A(a.number[i.value]);
      if constexpr (kAccess == Access::single)
        uniform_[i.value] = value_of<A>(*static_cast<const E*>(a.input[i.value]));
      if constexpr (kAccess == Access::column && !V::kChunked) {
#pragma unroll
        for (int held = 0; held < V::kHeld; ++held) load<i.value>(0, held, 0, true);
      }
    });
    for_each<0, kOutputs>([&](auto o) {
      if constexpr (V::kOutput[o.value] == Access::single) sum_[o.value] = 0;
      if constexpr (V::kOutput[o.value] == Access::column) {
#pragma unroll
        for (int held = 0; held < V::kHeld; ++held)
#pragma unroll
          for (int j = 0; j < kPack; ++j) column_sum_[o.value][held][j] = 0;
      }
    });
  }

  // The start of a row in a tensor with only some of the leading dimensions.
  template <int kInput>
  FN int64_t offset_of(int64_t row) const {
    int64_t offset = 0;
    uint32_t rest = static_cast<uint32_t>(row);
    int64_t long_rest = row;
#pragma unroll
    for (int d = V::kDims - 1; d > 0; --d) {
      int64_t index;
      if (a.rows < (int64_t(1) << 31)) {
        const uint32_t size = static_cast<uint32_t>(a.size[d]), quotient = rest / size;
        index = rest - quotient * size;
        rest = quotient;
      } else {
        const int64_t quotient = long_rest / a.size[d];
        index = long_rest - quotient * a.size[d];
        long_rest = quotient;
      }
      offset += index * a.stride[kInput][d];
    }
    const int64_t outermost = a.rows < (int64_t(1) << 31) ? int64_t(rest) : long_rest;
    return offset + outermost * a.stride[kInput][0];
  }

  template <int kInput>
  FN void load(Column chunk, int held, int64_t row, bool active) {
    using E = ElementOf<V::kInputType[kInput]>;
    const Column at = column(chunk, held);
    const E* const from = static_cast<const E*>(a.input[kInput]) + offset<kInput>(row, at);
    const auto count = active ? columns() - at : 0;
    if constexpr (is_integral_element<E>)
      load_integers(from, count, pack_[kInput][held]);
    else
      load_pack(from, count, pack_[kInput][held]);
  }

  template <int kInput>
  FN int64_t offset(int64_t row, Column at) const {
    constexpr Access kAccess = V::kInput[kInput];
    if constexpr (kAccess == Access::full) return row * a.columns + at;
    if constexpr (kAccess == Access::some) return offset_[kInput] + at;
    return at;
  }

  // Loads the late inputs, or the others.
  template <bool kLate>
  FN void load_chunk(Column chunk, int64_t row, bool active) {
    for_each<0, kInputs>([&](auto i) {
      constexpr bool kIsLoadedOnce = V::kInput[i.value] == Access::column && !V::kChunked;  // loaded once for all rows
      if constexpr (kAlongColumns<i.value> && V::kLate[i.value] == kLate && !kIsLoadedOnce) {
#pragma unroll
        for (int held = 0; held < V::kHeld; ++held) load<i.value>(chunk, held, row, active);
      }
    });
  }

  // Prefetches into the L2 cache, which takes no register.
  FN void prefetch_late(int64_t row, bool active) const {
    for_each<0, kInputs>([&](auto i) {
      if constexpr (V::kLate[i.value]) {
        using E = ElementOf<V::kInputType[i.value]>;
#pragma unroll
        for (int held = 0; held < V::kHeld; ++held) {
          const E* const from = static_cast<const E*>(a.input[i.value]) + offset<i.value>(row, column(0, held));
          if (count(0, held, active) > 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
        }
      }
    });
  }

  // Sets the row's start, and reads the inputs with one element per row.
  FN void read_row(int64_t row, bool active) {
    for_each<0, kInputs>([&](auto i) {
      constexpr Access kAccess = V::kInput[i.value];
      using E = ElementOf<V::kInputType[i.value]>;
      if constexpr (kIsSome<i.value>) offset_[i.value] = active ? offset_of<i.value>(row) : 0;
      if constexpr (kAccess == Access::row || (kIsSome<i.value> && !kAlongColumns<i.value>)) {
        const int64_t at = kAccess == Access::row ? (active ? row : 0) : offset_[i.value];
        uniform_[i.value] = value_of<A>(static_cast<const E*>(a.input[i.value])[at]);
      }
    });
  }

  FN void gather(int held, int j, A (&x)[kInputs]) const {
    for_each<0, kInputs>([&](auto i) {
      constexpr Access kAccess = V::kInput[i.value];
      if constexpr (kAlongColumns<i.value>)
        x[i.value] = element<Held<ElementOf<V::kInputType[i.value]>>>(pack_[i.value][held], j);
      else
        x[i.value] = uniform_[i.value];
    });
  }

  // The number of valid elements of a pack.
  FN Column count(Column chunk, int held, bool active) const { return active ? columns() - column(chunk, held) : 0; }

  template <int kStage>
  FN void reduce(int64_t row, bool active) {
    A folds[kReductions + 1];
    for_each<0, kReductions>([&](auto q) {
      constexpr Reduction kReduction = Program::kReduction[q.value];
      if constexpr (kReduction.stage == kStage) folds[q.value] = neutral<kReduction.kind>();
    });
    for (Column chunk = 0; chunk < chunks(); ++chunk) {
      if constexpr (V::kChunked) load_chunk<false>(chunk, row, active);
#pragma unroll
      for (int held = 0; held < V::kHeld; ++held) {
        const Column there = count(chunk, held, active);
#pragma unroll
        for (int j = 0; j < kPack; ++j) {
          A x[kInputs], terms[kReductions + 1];
          gather(held, j, x);
          Program::terms<kStage>(x, reduced_, terms);
          for_each<0, kReductions>([&](auto q) {
            constexpr Reduction kReduction = Program::kReduction[q.value];
            if constexpr (kReduction.stage == kStage)
              if (V::kWhole ? there > 0 : j < there)
                folds[q.value] = folded<kReduction.kind>(folds[q.value], terms[q.value]);
          });
        }
      }
    }
    for_each<0, kReductions>([&](auto q) {
      constexpr Reduction kReduction = Program::kReduction[q.value];
      if constexpr (kReduction.stage == kStage) {
        reduced_[q.value] = fold_row<kReduction.kind>(folds[q.value], places(), buffer_);
        if constexpr (kReduction.kind == kMean) reduced_[q.value] /= A(a.columns);
      }
    });
  }

  FN void compute_row(int64_t row, bool active) {
    read_row(row, active);
    if constexpr (!V::kChunked) {
      load_chunk<false>(0, row, active);
      prefetch_late(row, active);
    }
    for_each<0, Program::kStages>([&](auto stage) { reduce<stage.value>(row, active); });
    if constexpr (!V::kChunked) load_chunk<true>(0, row, active);
    A row_sum[kOutputs];
    for_each<0, kOutputs>([&](auto o) {
      if constexpr (V::kOutput[o.value] == Access::row) row_sum[o.value] = 0;
    });
    for (Column chunk = 0; chunk < chunks(); ++chunk) {
      if constexpr (V::kChunked) load_chunk<false>(chunk, row, active);
#pragma unroll
      for (int held = 0; held < V::kHeld; ++held) {
        const Column there = count(chunk, held, active);
        A results[kOutputs][kPack];
#pragma unroll
        for (int j = 0; j < kPack; ++j) {
          A x[kInputs], y[kOutputs];
          gather(held, j, x);
          Program::outputs(x, reduced_, y);
          for_each<0, kOutputs>([&](auto o) {
            constexpr Access kAccess = V::kOutput[o.value];
            results[o.value][j] = y[o.value];
            if constexpr (kAccess == Access::row && V::kOfRows[o.value]) {
              row_sum[o.value] = y[o.value];  // also in an empty row
            } else if (V::kWhole ? there > 0 : j < there) {
              if constexpr (kAccess == Access::row) row_sum[o.value] = add_(row_sum[o.value], y[o.value]);
              if constexpr (kAccess == Access::column)
                column_sum_[o.value][held][j] = add_(column_sum_[o.value][held][j], y[o.value]);
              if constexpr (kAccess == Access::single) sum_[o.value] = add_(sum_[o.value], y[o.value]);
            }
          });
        }
        for_each<0, kOutputs>([&](auto o) {
          using E = ElementOf<V::kOutputType[o.value]>;
          if constexpr (V::kOutput[o.value] == Access::full)
            store_pack(static_cast<E*>(a.output[o.value]) + row * a.columns + column(chunk, held), there,
                       results[o.value]);
        });
      }
    }
    for_each<0, kOutputs>([&](auto o) {
      using E = ElementOf<V::kOutputType[o.value]>;
      if constexpr (V::kOutput[o.value] == Access::row) {
        A sum = row_sum[o.value];
        if constexpr (!V::kOfRows[o.value]) sum = fold_row<kSum>(sum, places(), buffer_);
        if (across == 0 && active) static_cast<E*>(a.output[o.value])[row] = from_compute<E>(sum);
      }
    });
  }

  // Stores the partial sums of the chunk.
  FN void finish(int64_t row_chunk) {
    for_each<0, kOutputs>([&](auto o) {
      A* const partial = static_cast<A*>(a.output[o.value]);
      if constexpr (V::kOutput[o.value] == Access::column) {
#pragma unroll
        for (int held = 0; held < V::kHeld; ++held) {
          fold_groups(column_sum_[o.value][held]);
          if (group == 0) {
            const Column at = column(0, held);
#pragma unroll
            for (int j = 0; j < kPack; ++j)
              if (at + j < columns()) partial[row_chunk * a.columns + at + j] = column_sum_[o.value][held][j];
          }
        }
      }
      if constexpr (V::kOutput[o.value] == Access::single) {
        const A sum = fold_block(sum_[o.value]);
        if (threadIdx.x == 0) partial[blockIdx.x] = sum;
      }
    });
  }

  // Adds the values of the block's groups for the same columns.
  FN void fold_groups(A (&values)[kPack]) {
    if constexpr (kGroups > 1) {
      __shared__ A halves[V::kThreads / 2][kPack + 1];  // padded: neighbouring threads use different banks
#pragma unroll
      for (int half = kGroups / 2; half > 0; half /= 2) {
        __syncthreads();
        if (group >= half && group < 2 * half)
#pragma unroll
          for (int j = 0; j < kPack; ++j) halves[threadIdx.x - half * V::kAcross][j] = values[j];
        __syncthreads();
        if (group < half)
#pragma unroll
          for (int j = 0; j < kPack; ++j) values[j] += halves[threadIdx.x][j];
      }
    }
  }

  FN A fold_block(A value) {
    __shared__ A warps[kWarps];
    value = fold_lanes<kSum, 32>(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    return fold_lanes<kSum, 32>(lane < kWarps ? warps[lane] : A(0));
  }

  static FN A (*places()) [kWarps] {
    __shared__ A places[2][kWarps];
    return places;
  }

  const Arguments& a;
  const int across, group;
  int64_t tile_ = 0;
  int buffer_ = 0;
  uint32_t pack_[kInputs][V::kHeld][kMaxWords];
  A uniform_[kInputs];
  int64_t offset_[kInputs];
  A reduced_[kReductions + 1];
  A column_sum_[kOutputs][V::kHeld][kPack];
  A sum_[kOutputs];
};

}  // namespace fusedops::program

extern "C" __global__ void __launch_bounds__(fusedops::program::Variant::kThreads, fusedops::program::Variant::kBlocks)
    fusedops_program(const __grid_constant__ fusedops::program::Arguments arguments) {
#if __CUDA_ARCH__ >= 900
  // See begin_kernel() in core/cuda/launch.cuh.
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  fusedops::program::Kernel(arguments).run();
}
