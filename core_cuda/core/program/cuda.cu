// The GPU engine of programs: a kernel, compiled at the first use of a variant, followed by the sums across blocks.
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "core/cuda/launch.cuh"
#include "core/cuda/reduce.cuh"
#include "core/program/compiler.h"
#include "core/program/driver.h"
#include "core/program/variant.h"

namespace fusedops::program {
namespace {

static_assert(kMaxProgramInputs == kMaxInputs && kMaxProgramResults == kMaxOutputs);

struct Compiled {
  CUfunction function;
  int architecture;
};

// Allows loading code while a stream is captured, which the capture mode otherwise forbids.
class RelaxedCapture {
 public:
  RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

Status compile_for(const Program& program, const Variant& variant, Compiled* compiled) {
  const Driver* driver = program::driver();
  if (!driver) return Status::error("fusedops: an expression on a GPU needs a driver of CUDA 12 or newer");
  int version = 0;
  FUSEDOPS_TRY(driver->check(driver->version(&version), "asking for the driver's version"));
  compiled->architecture = cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) * 10 +
                           cuda::device_attribute(cudaDevAttrComputeCapabilityMinor);
  std::string code;
  FUSEDOPS_TRY(compile(variant.source(program), compiled->architecture, version, &code));
  const RelaxedCapture relaxed_capture;
  CUlibrary library;
  CUkernel kernel;
  FUSEDOPS_TRY(driver->check(driver->load(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                             "loading a compiled expression"));
  FUSEDOPS_TRY(driver->check(driver->get_kernel(&kernel, library, "fusedops_program"), "finding its kernel"));
  return driver->check(driver->get_function(&compiled->function, kernel), "loading its kernel");
}

// The kernel for the current GPU. Kernels are never unloaded.
Status find_compiled(const Operator& op, const Variant& variant, Compiled* compiled) {
  static auto& known = *new std::unordered_map<std::string, Compiled>();
  static auto& mutex = *new std::shared_mutex();
  int device = 0;
  FUSEDOPS_TRY(cuda::check(cudaGetDevice(&device), "asking for the GPU"));
  // cudaSetDevice makes the GPU's context current, which driver functions need. A thread of PyTorch's autograd has none
  // before its first launch by the runtime.
  FUSEDOPS_TRY(cuda::check(cudaSetDevice(device), "cudaSetDevice"));
  const Operator* const key_op = &op;
  std::string key = variant.bytes();
  key.append(reinterpret_cast<const char*>(&key_op), sizeof key_op)
      .append(reinterpret_cast<const char*>(&device), sizeof device);
  {
    const std::shared_lock lock(mutex);
    if (const auto found = known.find(key); found != known.end()) {
      *compiled = found->second;
      return {};
    }
  }
  FUSEDOPS_TRY(compile_for(program_of(op), variant, compiled));
  const std::unique_lock lock(mutex);
  known.emplace(std::move(key), *compiled);
  return {};
}

Status launch(const Call& call, const LaunchPlan& plan, const Compiled& compiled) {
  Arguments arguments;
  const Geometry& g = plan.geometry;
  for (size_t i = 0; i < call.op.inputs.size(); ++i) {
    arguments.input[i] = call.inputs[i] ? call.inputs[i]->data : nullptr;
    arguments.number[i] = call.scalars[i];
    std::copy_n(g.inputs[i].strides, g.dims, arguments.stride[i]);
  }
  for (size_t i = 0; i < call.op.outputs.size(); ++i)
    arguments.output[i] = plan.final_sum[i] == LaunchPlan::FinalSum::none
                              ? call.outputs[i].data
                              : static_cast<char*>(call.workspace) + plan.offset[i];
  arguments.rows = g.rows;
  arguments.columns = g.cols;
  arguments.rows_per_chunk = plan.rows_per_chunk;
  arguments.tiles = plan.tiles;
  std::copy_n(g.sizes, g.dims, arguments.size);

  CUlaunchAttribute overlap = {};
  overlap.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  overlap.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config = {};
  config.gridDimX = static_cast<unsigned>(plan.chunks * plan.tiles);
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = plan.variant.threads;
  config.hStream = static_cast<CUstream>(call.context.stream);
  config.attrs = &overlap;
  config.numAttrs = compiled.architecture >= 90 ? 1 : 0;
  if (plan.chunks * plan.tiles > INT32_MAX)
    return Status::error("fusedops: ", call.op.name, " needs more blocks than a GPU can count");
  void* parameters[] = {&arguments};
  return driver()->check(driver()->launch(&config, compiled.function, parameters, nullptr), "a kernel launch");
}

// A sum over some dimensions of the kernel's results in the workspace.
struct Folding {
  int kept = 0, reduced = 0;
  int64_t kept_size[kMaxRowDims + 1], kept_stride[kMaxRowDims + 1];
  int64_t reduced_size[kMaxRowDims + 1], reduced_stride[kMaxRowDims + 1];
  int64_t results = 1, terms = 1;

  // Keeps the result's leading dimensions, and the columns if the workspace has them.
  Folding(const Geometry& g, const Walk& walk, bool has_columns) {
    int64_t stride = 1;
    if (has_columns) {
      add(true, g.cols, stride);
      stride *= g.cols;
    }
    for (int d = g.dims - 1; d >= 0; --d) {
      add(walk.strides[d] != 0, g.sizes[d], stride);
      stride *= g.sizes[d];
    }
  }

  void add(bool is_kept, int64_t size, int64_t stride) {
    int& count = is_kept ? kept : reduced;
    (is_kept ? kept_size : reduced_size)[count] = size;
    (is_kept ? kept_stride : reduced_stride)[count] = stride;
    (is_kept ? results : terms) *= size;
    ++count;
  }

  static __device__ int64_t offset(int64_t index, int count, const int64_t* size, const int64_t* stride) {
    int64_t offset = 0;
    for (int d = 0; d < count; ++d) {
      offset += index % size[d] * stride[d];
      index /= size[d];
    }
    return offset;
  }
};

// `kLanes` threads of a warp compute one result.
template <int kLanes, class A, class T>
__global__ void __launch_bounds__(cuda::kThreads) fold_kernel(Folding folding, const A* terms, T* out) {
  cuda::begin_kernel();
  const int64_t index = (int64_t(blockIdx.x) * cuda::kThreads + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes;
  A sum = 0;
  if (index < folding.results) {
    const A* const from = terms + Folding::offset(index, folding.kept, folding.kept_size, folding.kept_stride);
    for (int64_t i = lane; i < folding.terms; i += kLanes)
      sum += from[Folding::offset(i, folding.reduced, folding.reduced_size, folding.reduced_stride)];
  }
  for (int width = kLanes / 2; width > 0; width /= 2) sum += __shfl_xor_sync(0xffffffff, sum, width);
  if (index < folding.results && lane == 0) out[index] = from_compute<T>(sum);
}

template <class A>
Status fold(const Context& context, const Folding& folding, bool has_columns, const A* terms, const View& out) {
  return dispatch(out.dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, double> != std::is_same_v<A, double>) {
      return Status::error("fusedops: sums and their result must both be float64, or neither");
    } else {
      const auto run = [&](auto kernel, int64_t lanes) {
        return cuda::launch(context, kernel, (folding.results * lanes + cuda::kThreads - 1) / cuda::kThreads,
                            cuda::kThreads, folding, terms, static_cast<T*>(out.data));
      };
      // Coalesced: neighbouring threads read neighbouring columns, or neighbouring terms without columns.
      return has_columns ? run(fold_kernel<1, A, T>, 1) : run(fold_kernel<32, A, T>, 32);
    }
  });
}

template <class A>
Status finish(const Call& call, const LaunchPlan& plan) {
  const Program& program = program_of(call.op);
  for (size_t i = 0; i < program.results.size(); ++i) {
    const A* const sums = reinterpret_cast<const A*>(static_cast<const char*>(call.workspace) + plan.offset[i]);
    const View& out = call.outputs[i];
    switch (plan.final_sum[i]) {
      case LaunchPlan::FinalSum::none:
        break;
      case LaunchPlan::FinalSum::chunks:
        FUSEDOPS_TRY(cuda::sum_row_chunks(call.context, sums, plan.chunks, plan.geometry.cols, out));
        break;
      case LaunchPlan::FinalSum::partials:
        FUSEDOPS_TRY(cuda::sum_partials(call.context, sums, plan.chunks * plan.tiles, out));
        break;
      case LaunchPlan::FinalSum::folded: {
        const bool has_columns = plan.variant.output[i] == Access::full;
        const Folding folding(plan.geometry, plan.geometry.of(program.results[i]), has_columns);
        FUSEDOPS_TRY(fold(call.context, folding, has_columns, sums, out));
        break;
      }
    }
  }
  return {};
}

// Writes empty sums.
Status clear(const Call& call) {
  for (size_t i = 0; i < call.op.outputs.size(); ++i) {
    const View& out = call.outputs[i];
    const size_t bytes = static_cast<size_t>(out.numel()) * size_of(out.dtype);
    if (bytes > 0)
      FUSEDOPS_TRY(cuda::check(cudaMemsetAsync(out.data, 0, bytes, static_cast<cudaStream_t>(call.context.stream)),
                               "clearing a result"));
  }
  return {};
}

}  // namespace

Status cuda(const Call& call) {
  LaunchPlan plan;
  FUSEDOPS_TRY(LaunchPlan::make(call, &plan));
  if (!plan.geometry.has_work(program_of(call.op))) return clear(call);
  Compiled compiled;
  FUSEDOPS_TRY(find_compiled(call.op, plan.variant, &compiled));
  FUSEDOPS_TRY(launch(call, plan, compiled));
  return plan.variant.dtype == DType::f64 ? finish<double>(call, plan) : finish<float>(call, plan);
}

}  // namespace fusedops::program
