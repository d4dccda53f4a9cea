// Arithmetic in the widest vectors of the processor at hand.
#pragma once

namespace fusedops::cpu {

// Runs function(), compiled once more for the widest vectors of x86 processors: arithmetic, where it is the limit,
// takes 0.6 of the time. The bits are the same.
#if defined(__x86_64__) && defined(__AVX2__) && !defined(__AVX512F__)
template <class Function>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"), gnu::flatten, gnu::noinline]]
void run_avx512(Function& function) {
  function();
}

template <class Function>
void run_widest(Function function) {
  static const bool wide =
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (wide)
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
