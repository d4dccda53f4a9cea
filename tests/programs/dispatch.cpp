// Prints the selected kernel for each problem of stdin: see tests/operators/test_dispatch.py.
#include <iostream>
#include <string>

#include "ops/attention/attention_dispatch.h"
#include "ops/experts/grouped_dispatch.h"
#include "ops/loss/linear_cross_entropy_dispatch.h"
#include "ops/products/matmul_dispatch.h"

using namespace fusedops;
using namespace fusedops::cuda;

namespace {

struct Reader {
  GpuProperties gpu;
  DType dtype;
  int64_t next_tensor = 1;

  int64_t number() const {
    int64_t value;
    std::cin >> value;
    return value;
  }

  // The address of a tensor that starts this many elements after an aligned address.
  void* tensor(int64_t offset = 0) { return reinterpret_cast<void*>((next_tensor++ << 40) + offset * size_of(dtype)); }

  void read_head() {
    gpu.major = int(number()), gpu.minor = int(number()), gpu.multiprocessors = int(number());
    gpu.shared_bytes = int(number()), gpu.has_sm90_kernels = number() != 0;
    std::string name;
    std::cin >> name;
    for (const DType each : {DType::f64, DType::f32, DType::f16, DType::bf16})
      if (name == name_of(each)) dtype = each;
  }

  std::string product() {
    const int64_t m = number(), n = number(), k = number();
    const bool transpose_a = number(), transpose_b = number();
    const int64_t batch = number(), pad = number(), offset = number(), result = number();
    const auto matrix = [&](int64_t rows, int64_t columns, bool transposed) {
      const int64_t stride = (transposed ? rows : columns) + pad;
      return Matmul::Matrix{tensor(offset), transposed, stride, (transposed ? columns : rows) * stride};
    };
    const auto a = matrix(m, k, transpose_a), b = matrix(k, n, transpose_b);
    Matmul product(dtype, batch, m, n, k, a, b, tensor());
    if (result == 1 || result == 2) product.to_sums(/*add=*/result == 1);
    if (result == 3) product.to_halves(tensor(), /*add=*/true, /*round=*/false);
    if (result == 2) product.is_split = true;
    product.epilogue.activation = int(number());
    const ProductProblem problem(product, gpu);
    return kernel_name(choose_product(problem, gpu), problem);
  }

  std::string attention() {
    Attention call = {};
    call.dtype = dtype;
    const bool is_backward = number();
    call.sequences = 2, call.key_heads = 2;
    call.queries = int(number()), call.keys = int(number()), call.group = int(number());
    call.dim = call.dim_v = int(number());
    call.heads = call.key_heads * call.group;
    call.has_mask = number();
    call.dropout.seed = static_cast<decltype(call.dropout.seed)>(number() ? tensor() : nullptr);
    call.softcap = double(number());
    call.alibi.data = number() ? tensor() : nullptr;
    const int64_t keys = call.keys;
    const View bias = {tensor(), DType::f32, 1, &keys};
    if (number()) call.bias = BroadcastBias(bias, bias);
    call.scale = 1;
    const auto rows = [&](int positions, int heads) {
      return HeadRows{tensor(), int64_t(positions) * heads * call.dim, int64_t(heads) * call.dim, call.dim};
    };
    for (HeadRows* each : {&call.q, &call.y, &call.dy, &call.dq}) *each = rows(call.queries, call.heads);
    for (HeadRows* each : {&call.k, &call.v, &call.dk, &call.dv}) *each = rows(call.keys, call.key_heads);
    return choose_attention(call, is_backward, gpu).name;
  }

  std::string gated_linear() {
    const int64_t rows = number(), columns = number(), depth = number(), pad = number();
    const bool is_same = number();
    const int64_t x_sizes[] = {rows, depth}, x_strides[] = {depth, 1}, sizes[] = {columns, depth};
    const int64_t gate_strides[] = {depth, 1}, up_strides[] = {depth + pad, 1};
    const View x = {tensor(), dtype, 2, x_sizes, x_strides}, gate = {tensor(), dtype, 2, sizes, gate_strides};
    const View up = {is_same ? gate.data : tensor(), dtype, 2, sizes, up_strides};
    Value values[3];
    values[attribute_of<std::string>(kGatedLinear, "activation").index].string = "silu";
    values[attribute_of<bool>(kGatedLinear, "transpose_weight").index].i64 = true;
    const Operator op = {kGatedLinear};
    Call call(op);
    call.inputs[0] = &x, call.inputs[1] = &gate, call.inputs[2] = &up;
    call.outputs[0].data = tensor();
    call.attributes = Attributes(values);
    return choose_gated_linear(GatedLinear(call), gpu).name;
  }

  std::string grouped() {
    const bool is_gradient = number();
    const int64_t groups = number(), rows = number(), n = number(), k = number(), offset = number();
    const Groups all = {nullptr, groups, rows};
    if (is_gradient) {
      GroupedGradient product = {.dtype = dtype, .groups = all, .m = n, .n = k};
      product.a = {tensor(), n}, product.b = {tensor(offset), k}, product.c = tensor();
      return choose_grouped(representative(product), gpu).name;
    }
    GroupedMatmul product = {.dtype = dtype, .groups = all, .n = n, .k = k};
    product.x = {tensor(), k}, product.b = {tensor(offset), true, k, n * k}, product.y = tensor();
    return choose_grouped(representative(product), gpu).name;
  }

  std::string logits() {
    const int64_t m = number(), n = number(), k = number();
    const double softcap = double(number());
    Matmul product(dtype, 1, m, n, k, {tensor(), false, k, 0}, {tensor(), true, k, 0}, tensor());
    product.to_sums(/*add=*/false).without_workspace();
    return first_that_accepts(kLogits, LogitsProblem{product, softcap, nullptr}, gpu).name;
  }

  std::string kernel(const std::string& kind) {
    if (kind == "product") return product();
    if (kind == "attention") return attention();
    if (kind == "grouped") return grouped();
    return kind == "gated_linear" ? gated_linear() : logits();
  }
};

}  // namespace

int main() {
  for (std::string kind; std::cin >> kind;) {
    Reader reader;
    reader.read_head();
    std::cout << reader.kernel(kind) << "\n";
  }
}
