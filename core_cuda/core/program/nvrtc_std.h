// The parts of the standard library that the element functions use. NVRTC has none.
#pragma once

using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long long;

#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)

namespace std {

template <class To, class From>
constexpr To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}

template <bool kCondition, class Then, class Else>
struct conditional {
  using type = Then;
};
template <class Then, class Else>
struct conditional<false, Then, Else> {
  using type = Else;
};
template <bool kCondition, class Then, class Else>
using conditional_t = typename conditional<kCondition, Then, Else>::type;

template <class One, class Other>
inline constexpr bool is_same_v = false;
template <class One>
inline constexpr bool is_same_v<One, One> = true;

}  // namespace std
