// The instruction sets that CPU kernels are written for, and which of them this machine runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hone {

/// A level of the CPU's vector instructions; each includes those before it.
enum class Isa {
  kBaseline,  ///< x86-64 (SSE2), or the portable code on other machines
  kAvx2,      ///< AVX2, FMA, F16C
  kAvx512,    ///< AVX-512 F, BW, DQ, VL
  kAmx,       ///< AMX tiles of bfloat16 and int8, with AVX-512 VBMI and BF16 (Sapphire Rapids and newer)
};

/// "baseline", "avx2", "avx512", "amx"
std::string_view name_of(Isa isa);

/// The highest level that both the CPU and the operating system support. Its first call asks the operating system for
/// the tile registers, for all threads of the process.
Isa best_isa();

/// The level that kernels use: best_isa(), or what force_isa chose.
Isa active_isa();

/// Makes kernels use `isa` from now on, process-wide; for tests and the configuration, between steps. Results of
/// different levels differ by rounding. Throws UserError if the machine lacks it.
void force_isa(Isa isa);

/// One line of the report on the machine.
struct CpuFeature {
  std::string_view name;
  bool present;  ///< the CPU has it and the operating system saves its registers
};

/// What kernels use or could use: avx2, fma, f16c, avx512…, amx….
std::vector<CpuFeature> cpu_features();

/// The processor's name as it reports itself, or "unknown".
std::string cpu_name();

}  // namespace hone
