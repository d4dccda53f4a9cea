// The element types of operators, their sizes and compute dtypes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fusedops {

// Kernels are written for the four floating types, which come first. The others exist so that a rule can accept them (a
// mask, labels), return them (float8) or name them in an error.
enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  boolean,
  u8,
  i8,
  i16,
  i32,
  i64,
  c64,
  c128,
  f8_e4m3fn,
  f8_e5m2,
  other,
};

struct DTypeInfo {
  const char* name;  // the spelling of all frameworks
  size_t size;       // bytes
};

inline constexpr DTypeInfo kDTypes[] = {
    {"float64", 8},   {"float32", 4},     {"float16", 2},       {"bfloat16", 2},    {"bool", 1},
    {"uint8", 1},     {"int8", 1},        {"int16", 2},         {"int32", 4},       {"int64", 8},
    {"complex64", 8}, {"complex128", 16}, {"float8_e4m3fn", 1}, {"float8_e5m2", 1}, {"an unsupported dtype", 0},
};

constexpr const char* name_of(DType dtype) { return kDTypes[static_cast<int>(dtype)].name; }
constexpr size_t size_of(DType dtype) { return kDTypes[static_cast<int>(dtype)].size; }
constexpr bool is_floating(DType dtype) { return dtype <= DType::bf16; }
constexpr bool is_integral(DType dtype) { return DType::boolean <= dtype && dtype <= DType::i64; }

// 16-bit inputs are computed and summed in float32 and rounded once at the end; float64 stays float64.
constexpr DType compute_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace fusedops
