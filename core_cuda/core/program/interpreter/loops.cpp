#include "core/program/interpreter/loops.h"

#include <array>
#include <utility>

#include "core/cpu/widest.h"
#include "core/program/functions.h"

namespace fusedops::program::interpreter {
namespace {

template <Op kOp, class A>
A result_of(A a, A b, A c) {
  constexpr A kTrue = 1, kFalse = 0;
  if constexpr (kOp == Op::neg) return -a;
  if constexpr (kOp == Op::add) return a + b;
  if constexpr (kOp == Op::sub) return a - b;
  if constexpr (kOp == Op::mul) return a * b;
  if constexpr (kOp == Op::div) return a / b;
  if constexpr (kOp == Op::pow) return pow_(a, b);
  if constexpr (kOp == Op::lt) return activations::choose(a < b, kTrue, kFalse);
  if constexpr (kOp == Op::le) return activations::choose(a <= b, kTrue, kFalse);
  if constexpr (kOp == Op::gt) return activations::choose(a > b, kTrue, kFalse);
  if constexpr (kOp == Op::ge) return activations::choose(a >= b, kTrue, kFalse);
  if constexpr (kOp == Op::eq) return activations::choose(a == b, kTrue, kFalse);
  if constexpr (kOp == Op::ne) return activations::choose(a != b, kTrue, kFalse);
  if constexpr (kOp == Op::where) return where_(a, b, c);
  if constexpr (kOp == Op::min) return min_(a, b);
  if constexpr (kOp == Op::max) return max_(a, b);
  if constexpr (kOp == Op::exp) return exp_(a);
  if constexpr (kOp == Op::log) return log_(a);
  if constexpr (kOp == Op::log1p) return log1p_(a);
  if constexpr (kOp == Op::expm1) return expm1_(a);
  if constexpr (kOp == Op::sqrt) return sqrt_(a);
  if constexpr (kOp == Op::rsqrt) return rsqrt_(a);
  if constexpr (kOp == Op::sin) return sin_(a);
  if constexpr (kOp == Op::cos) return cos_(a);
  if constexpr (kOp == Op::tanh) return tanh_(a);
  if constexpr (kOp == Op::sigmoid) return sigmoid_(a);
  if constexpr (kOp == Op::erf) return erf_(a);
  if constexpr (kOp == Op::cdf) return cdf_(a);
  if constexpr (kOp == Op::pdf) return pdf_(a);
  if constexpr (kOp == Op::abs) return abs_(a);
  if constexpr (kOp == Op::floor) return floor_(a);
  if constexpr (kOp == Op::sign) return sign_(a);
  if constexpr (kOp == Op::fma) return a * b + c;
  if constexpr (kOp == Op::fms) return a * b - c;
  if constexpr (kOp == Op::fnma) return c - a * b;
  if constexpr (kOp == kMulMul) return a * b * c;
  if constexpr (kOp == kAddMul) return (a + b) * c;
  if constexpr (kOp == kSubMul) return (a - b) * c;
  if constexpr (kOp == kAddAdd) return a + b + c;
}

template <class A, Op kOp, int kPattern>
void loop(const A* a, const A* b, const A* c, A* to, int64_t n) {
  constexpr int kCount = operands_of(kOp);
  const A a0 = *a, b0 = kCount > 1 ? *b : A(0), c0 = kCount > 2 ? *c : A(0);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const A at_a = kPattern & 1 ? a0 : a[i];
    const A at_b = kCount < 2 || kPattern & 2 ? b0 : b[i];
    const A at_c = kCount < 3 || kPattern & 4 ? c0 : c[i];
    to[i] = result_of<kOp>(at_a, at_b, at_c);
  }
}

// A second copy for AVX-512: see core/cpu/widest.h.
template <class A, Op kOp, int kPattern>
void widest_loop(const A* a, const A* b, const A* c, A* to, int64_t n) {
  fusedops::cpu::run_widest([=] { loop<A, kOp, kPattern>(a, b, c, to, n); });
}

template <class A, int kIndex>
constexpr Loop<A> loop_at() {
  constexpr Op kOp = static_cast<Op>(kIndex / kPatterns);
  constexpr int kPattern = kIndex % kPatterns;
  if constexpr (kPattern >= (1 << operands_of(kOp)) - 1)
    return nullptr;
  else
    return widest_loop<A, kOp, kPattern>;
}

template <class A, int... kIndex>
constexpr std::array<Loop<A>, sizeof...(kIndex)> loops_at(std::integer_sequence<int, kIndex...>) {
  return {loop_at<A, kIndex>()...};
}

template <class A>
constexpr auto kLoops = loops_at<A>(std::make_integer_sequence<int, kOperations * kPatterns>());

}  // namespace

template <class A>
const Loop<A>* loops() {
  return kLoops<A>.data();
}

template const Loop<float>* loops();
template const Loop<double>* loops();

}  // namespace fusedops::program::interpreter
