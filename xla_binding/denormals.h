// Subnormal numbers on threads that flush them to zero, as those of TensorFlow and XLA do.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace fusedops::xla_binding {

// Computes with subnormal numbers on this thread until it is destroyed.
class IeeeDenormals {
 public:
  IeeeDenormals() : before_(control()) { set_control(before_ & ~kFlush); }
  ~IeeeDenormals() { set_control(before_); }
  IeeeDenormals(const IeeeDenormals&) = delete;
  IeeeDenormals& operator=(const IeeeDenormals&) = delete;

 private:
#if defined(__x86_64__)
  using Control = uint32_t;                  // MXCSR
  static constexpr Control kFlush = 0x8040;  // flush-to-zero and denormals-are-zero
  static Control control() { return _mm_getcsr(); }
  static void set_control(Control control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
  using Control = uint64_t;                            // FPCR
  static constexpr Control kFlush = Control{1} << 24;  // FZ
  static Control control() {
    Control control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void set_control(Control control) { asm volatile("msr fpcr, %0" ::"r"(control)); }
#else
  using Control = int;
  static constexpr Control kFlush = 0;
  static Control control() { return 0; }
  static void set_control(Control) {}
#endif

  const Control before_;
};

}  // namespace fusedops::xla_binding
