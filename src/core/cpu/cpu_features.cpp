#include "core/cpu/cpu_features.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace hone {

namespace {

struct Features {
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false;
  bool avx512vbmi = false, avx512_bf16 = false, avx512_fp16 = false;
  bool amx_tile = false, amx_bf16 = false, amx_int8 = false;
};

#if defined(__x86_64__)

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

/// Returns zeros if the CPU does not have the leaf.
Registers cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool bit(uint32_t word, int i) { return (word >> i & 1) != 0; }

/// XCR0: the register states that the operating system saves. Only valid if cpuid reports OSXSAVE.
uint64_t saved_states() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Bits: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID; volume 1, section 13.
Features detect() {
  Features f;
  const Registers basic = cpuid(1);
  if (!bit(basic.ecx, 27)) return f;
  const uint64_t states = saved_states();
  const auto saves = [&](uint64_t mask) { return (states & mask) == mask; };
  const bool ymm = saves(0x6), zmm = saves(0xe6), tiles = saves(0x60000);
  const Registers extended = cpuid(7), extended1 = cpuid(7, 1);
  f.fma = ymm && bit(basic.ecx, 12);
  f.f16c = ymm && bit(basic.ecx, 29);
  f.avx2 = ymm && bit(extended.ebx, 5);
  f.avx512f = zmm && bit(extended.ebx, 16);
  f.avx512dq = zmm && bit(extended.ebx, 17);
  f.avx512bw = zmm && bit(extended.ebx, 30);
  f.avx512vl = zmm && bit(extended.ebx, 31);
  f.avx512vbmi = zmm && bit(extended.ecx, 1);
  f.avx512_fp16 = zmm && bit(extended.edx, 23);
  f.avx512_bf16 = zmm && bit(extended1.eax, 5);
  f.amx_bf16 = tiles && bit(extended.edx, 22);
  f.amx_tile = tiles && bit(extended.edx, 24);
  f.amx_int8 = tiles && bit(extended.edx, 25);
  return f;
}

#else

Features detect() { return {}; }

#endif

#ifdef HONE_EMULATE_AMX
bool has_tiles(const Features&) { return true; }  // in memory (amx_emulation.h)
#else
/// Requests the tile registers: Linux enables them, 8 KiB of state per thread, only on request
/// (Documentation/arch/x86/xstate.rst).
bool tiles_permitted() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool has_tiles(const Features& f) { return f.amx_tile && f.amx_bf16 && f.amx_int8 && tiles_permitted(); }
#endif

const Features& features() {
  static const Features result = detect();
  return result;
}

std::atomic<Isa>& chosen_isa() {
  static std::atomic<Isa> isa{stated_isa().value_or(best_isa())};
  return isa;
}

/// Throws UserError if the machine does not support the level that `where` asks for.
void require_support(Isa isa, const char* where) {
  if (isa <= best_isa()) return;
  throw UserError(fmt::format("this machine does not run {} kernels", name_of(isa)), where,
                  fmt::format("leave the instruction set to the program, or choose {}", name_of(best_isa())));
}

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
    case Isa::kBaseline:
      break;
  }
  return "baseline";
}

Isa best_isa() {
  static const Isa best = [] {
    const Features& f = features();
    if (!(f.avx2 && f.fma && f.f16c)) return Isa::kBaseline;
    if (!(f.avx512f && f.avx512bw && f.avx512dq && f.avx512vl)) return Isa::kAvx2;
    return f.avx512vbmi && f.avx512_bf16 && has_tiles(f) ? Isa::kAmx : Isa::kAvx512;
  }();
  return best;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> levels;
  for (const Isa isa : kIsas) {
    if (isa <= best_isa()) levels.push_back(isa);
  }
  return levels;
}

std::optional<Isa> stated_isa() {
  constexpr const char* kName = "HONE_INSTRUCTION_SET";
  const char* const stated = std::getenv(kName);
  if (stated == nullptr || *stated == '\0') return std::nullopt;
  std::vector<std::string_view> names;
  for (const Isa isa : kIsas) {
    names.push_back(name_of(isa));
    if (names.back() != stated) continue;
    require_support(isa, kName);
    return isa;
  }
  throw UserError(fmt::format("{} is '{}'", kName, stated), "environment",
                  fmt::format("write one of {}, or unset it", fmt::join(names, ", ")));
}

Isa active_isa() { return chosen_isa().load(std::memory_order_relaxed); }

void force_isa(Isa isa) {
  require_support(isa, "");
  chosen_isa().store(isa, std::memory_order_relaxed);
}

std::vector<CpuFeature> cpu_features() {
  const Features& f = features();
  return {{"avx2", f.avx2},
          {"fma", f.fma},
          {"f16c", f.f16c},
          {"avx512f", f.avx512f},
          {"avx512bw", f.avx512bw},
          {"avx512dq", f.avx512dq},
          {"avx512vl", f.avx512vl},
          {"avx512vbmi", f.avx512vbmi},
          {"avx512_bf16", f.avx512_bf16},
          {"avx512_fp16", f.avx512_fp16},
          {"amx_tile", f.amx_tile},
          {"amx_bf16", f.amx_bf16},
          {"amx_int8", f.amx_int8}};
}

std::string cpu_name() {
#if defined(__x86_64__)
  constexpr uint32_t kBrandFirst = 0x80000002, kBrandLast = 0x80000004;
  if (__get_cpuid_max(0x80000000, nullptr) < kBrandLast) return "unknown";
  std::array<char, 3 * sizeof(Registers) + 1> brand{};
  for (uint32_t leaf = kBrandFirst; leaf <= kBrandLast; ++leaf) {
    const Registers r = cpuid(leaf);
    std::memcpy(brand.data() + (leaf - kBrandFirst) * sizeof(Registers), &r, sizeof(Registers));
  }
  const std::string_view text(brand.data());
  const size_t first = text.find_first_not_of(' '), last = text.find_last_not_of(' ');
  return first == std::string_view::npos ? "unknown" : std::string(text.substr(first, last - first + 1));
#else
  return "unknown";
#endif
}

}  // namespace hone
