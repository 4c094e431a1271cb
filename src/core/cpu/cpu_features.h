// The instruction sets of CPU kernels, and which of them this machine supports.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hone {

/// A level of the CPU's vector instructions; each includes the previous ones.
enum class Isa {
  kBaseline,  ///< x86-64 (SSE2), or the portable code on other machines
  kAvx2,      ///< AVX2, FMA, F16C
  kAvx512,    ///< AVX-512 F, BW, DQ, VL
  kAmx,       ///< AMX tiles of bfloat16 and int8, with AVX-512 VBMI and BF16 (Sapphire Rapids and newer)
};

/// All levels, the lowest first.
inline constexpr std::array kIsas = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

/// "baseline", "avx2", "avx512", "amx"
std::string_view name_of(Isa isa);

/// The highest level that both the CPU and the operating system support. The first call requests the tile registers
/// from the operating system, for all threads of the process.
Isa best_isa();

/// The levels up to best_isa(), the lowest first.
std::vector<Isa> supported_isas();

/// The level that the environment variable HONE_INSTRUCTION_SET names; nothing if it is unset or empty. Throws
/// UserError for another word than those of name_of, and for a level that the machine does not support.
std::optional<Isa> stated_isa();

/// The level that kernels use: that of force_isa, else stated_isa(), else best_isa(). The environment is read by the
/// first call, which throws as stated_isa does.
Isa active_isa();

/// Makes all kernels of the process use `isa` from now on, also above stated_isa(): for tests that compare levels
/// (core/cpu/isa_testing.h), between steps. Results of different levels differ by rounding. Throws UserError if the
/// machine does not support it.
void force_isa(Isa isa);

/// A CPU feature in the report on the machine.
struct CpuFeature {
  std::string_view name;
  bool present;  ///< the CPU has it and the operating system saves its registers
};

/// The features that kernels use or could use: avx2, fma, f16c, avx512…, amx….
std::vector<CpuFeature> cpu_features();

/// The name that the processor reports, or "unknown".
std::string cpu_name();

}  // namespace hone
