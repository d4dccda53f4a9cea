// 8-bit results with scales, value ≈ y * scale, for CPU and CUDA kernels.
//
// Formats: Micikevicius et al., "FP8 formats for deep learning", 2022. e4m3fn has 4 exponent bits, 3 mantissa bits and
// no infinity; e5m2 has 5 and 2. Values round to nearest even. Values beyond the largest finite number, infinities
// included, saturate to it. NaN stays NaN.
//
// A scale belongs to all elements, to a row, or to 128 neighbouring elements of a row. It is given, or computed so that
// the largest absolute value maps to the largest finite number. If a value is infinite, the computed scale is infinite:
// y is then 0, and NaN for infinite values. Only with a given scale do infinities saturate.
#pragma once

#include <limits>
#include <string_view>

#include "core/common/formulas.h"
#include "core/common/numeric.h"
#include "core/common/rows.h"

namespace fusedops {

enum class Scaling : uint8_t { tensor, row, block };

inline constexpr std::string_view kScalings[] = {"tensor", "row", "block"};  // in the order of Scaling
inline constexpr std::string_view kFloat8s[] = {"float8_e4m3fn", "float8_e5m2"};
inline constexpr int kScaleBlock = Rule::kBlock;  // elements of a row that share a scale

constexpr int64_t scale_blocks(int64_t columns) { return (columns + kScaleBlock - 1) / kScaleBlock; }

template <int kMantissaBits, int kExponentBias, int kLargest>
struct Float8Format {
  static constexpr int kMantissa = kMantissaBits, kBias = kExponentBias;
  static constexpr float kLargestNumber = kLargest;
  static constexpr uint8_t kNaN = 0x7f;  // the NaN that GPUs produce
};
using E4m3 = Float8Format<3, 7, 448>;
using E5m2 = Float8Format<2, 15, 57344>;

// Rounds a double to odd, in float. Rounding the result again to fewer bits equals rounding the double once. Boldo and
// Melquiond, "When double rounding is odd", 2005.
FUSEDOPS_HD float to_odd(double x) {
  const float nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || x != x) return nearest;
  const bool is_above = (nearest < 0 ? -nearest : nearest) > (x < 0 ? -x : x);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(nearest) - (is_above ? 1u : 0u)) | 1u);
}
FUSEDOPS_HD float to_odd(float x) { return x; }

// x / scale, rounded to odd. Rounded to nearest, a quotient could land on a tie between two 8-bit values and be rounded
// twice. The sign of the remainder tells on which side of the quotient the exact value lies.
template <class A>
FUSEDOPS_HD A odd_quotient(A x, A scale) {
  using Bits = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;
  constexpr Bits kMagnitude = Bits(-1) >> 1, kInfinity = std::bit_cast<Bits>(std::numeric_limits<A>::infinity());
  constexpr A kSmall = sizeof(A) == 8 ? A(0x1p-500) : A(0x1p-60);  // the remainder of a smaller x might underflow
  const A up = activations::choose(activations::magnitude(x) < kSmall, 1 / kSmall, A(1));
  x *= up, scale *= up;
  const A quotient = x / scale, remainder = activations::multiply_add(-quotient, scale, x);
  const Bits bits = std::bit_cast<Bits>(quotient);
  // With an infinite scale the remainder is NaN, and the quotient is exact.
  const Bits is_finite = (bits & kMagnitude) < kInfinity;
  const Bits is_rounded = is_finite & (Bits(remainder < 0) | Bits(remainder > 0));
  const Bits is_above = is_rounded & Bits((remainder > 0) == (x < 0));
  return std::bit_cast<A>((bits - is_above) | is_rounded);
}

// Written so that compilers vectorize it. GPUs from 8.9 on have an instruction: core/cuda/float8.cuh.
template <class Format>
FUSEDOPS_HD uint8_t float8_from(float x) {
  constexpr int kDropped = 23 - Format::kMantissa;
  constexpr uint32_t kRebias = uint32_t(127 - Format::kBias) << 23, kMinNormal = kRebias + (1u << 23);
  constexpr uint32_t kLargest = std::bit_cast<uint32_t>(Format::kLargestNumber);
  // Adding this to a subnormal magnitude rounds it to a multiple of the smallest positive number.
  constexpr uint32_t kShift = uint32_t(127 + kDropped + 1 - Format::kBias) << 23;
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffff;
  const uint32_t within = magnitude < kLargest ? magnitude : kLargest;
  const uint32_t normal = (within - kRebias + ((1u << (kDropped - 1)) - 1) + ((within >> kDropped) & 1)) >> kDropped;
  const float shifted = std::bit_cast<float>(within) + std::bit_cast<float>(kShift);
  const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - kShift;
  const uint32_t rounded = within < kMinNormal ? subnormal : normal;
  return static_cast<uint8_t>(magnitude > 0x7f800000 ? Format::kNaN : rounded | ((bits >> 24) & 0x80));
}

// Indices of the float8 arguments in a signature, or kAbsent if the result is not in 8 bits.
struct Float8Places {
  int scale, y, scales;  // input, outputs
  AttributeIndex<std::string> scaling, dtype;

  constexpr bool are_there() const { return scales != kAbsent; }
};

// Not a constructor: in templates, nvcc does not call consteval constructors.
consteval Float8Places float8_places(const Signature& op) {
  return {find_input(op, "scale"), find_output(op, "y"), find_output(op, "scales"),
          find_attribute<std::string>(op, "scaling"), find_attribute<std::string>(op, "dtype")};
}

// Declarations for signatures: the optional given scale, and the 8-bit results.
inline constexpr Input kGivenScale{.name = "scale", .kind = Kind::optional};
inline constexpr Output kFloat8Result{"y", "dtype"};
inline constexpr Output kScalesResult{"scales", "compute(x)"};
inline constexpr Attribute kScalingAttribute{"scaling", Type::string, "row", kScalings};
inline constexpr Attribute kFloat8Attribute{"dtype", Type::string, "float8_e4m3fn", kFloat8s};

// Sets the outputs of an operator whose values have the shape and floating dtype of `values`; `like` is the input that
// gives this dtype. Checks the given scale, which must have the shape of computed scales.
Status float8_rule(Rule& rule, const Float8Places& at, const Shape& values, int like);

// Workspace bytes for the largest absolute value of a tensor, if its scale is computed from it.
inline constexpr size_t kLargestBytes = 16;

// The float8 arguments of a call. A: the compute type.
template <class A>
struct Float8Result {
  Float8Result() = default;
  Float8Result(const Call& call, const Float8Places& at, int64_t columns, void* largest)
      : y(call.output<uint8_t>(at.y)),
        given(call.input<A>(at.scale)),
        scales(given ? nullptr : call.output<A>(at.scales)),
        columns(columns),
        is_e5m2(call.attributes[at.dtype] == kFloat8s[1]) {
    const std::string& name = call.attributes[at.scaling];
    scaling = name == kScalings[0] ? Scaling::tensor : name == kScalings[1] ? Scaling::row : Scaling::block;
    if (has_tensor_scale()) this->largest = static_cast<A*>(largest);
  }

  // True if one scale is computed from all elements: the first pass finds the largest value, the second rounds.
  bool has_tensor_scale() const { return scaling == Scaling::tensor && !given; }

  // True in the second of two passes. It walks the tensor backwards, since the caches still hold its end.
  FUSEDOPS_HD bool is_second_pass() const { return largest && !finds_largest; }

  // The scale for a largest value. Its inverse is finite, also for zeros; an infinite value gives an infinite scale.
  FUSEDOPS_HD A scale_of(A largest_value) const {
    const A scale = largest_value / A(is_e5m2 ? E5m2::kLargestNumber : E4m3::kLargestNumber);
    constexpr A kLeast = std::numeric_limits<A>::min();
    return scale < kLeast ? kLeast : scale;
  }

  // The index of an element's scale.
  FUSEDOPS_HD int64_t scale_place(int64_t row, int64_t column) const {
    if (scaling == Scaling::tensor) return 0;
    return scaling == Scaling::row ? row : row * scale_blocks(columns) + column / kScaleBlock;
  }

  uint8_t* y = nullptr;        // contiguous rows of `columns`
  bool finds_largest = false;  // the first of two passes, which writes only `largest`
  const A* given = nullptr;
  A* scales = nullptr;   // null if the scales are given
  A* largest = nullptr;  // the largest absolute value of all elements, if the scale is computed from it
  int64_t columns = 0;
  bool is_e5m2 = false;
  Scaling scaling = Scaling::row;
};

}  // namespace fusedops
