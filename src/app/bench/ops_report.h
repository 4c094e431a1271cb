// What hone bench ops has measured, beside what the machine allows: the roofline model (Williams, Waterman and
// Patterson, CACM 52(4), 2009).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/text/json_fwd.h"
#include "kernels/op_bench.h"

namespace hone {

/// A row that takes longer than this times what it took is a regression.
inline constexpr double kBenchTolerance = 1.05;

struct OpRow {
  OpPart part;
  double seconds = 0;
  std::string missing;       ///< why it was not run
  std::string kernels = {};  ///< that its case has run, where ops choose: "attention: sm90 backward, sm90 forward"
};

/// FLOP/s and bytes/s that this machine reaches, in the dtype and with the threads of the run.
struct Ceilings {
  double gemm = 0;   ///< the rate of a square product
  double flops = 0;  ///< the rate of the arithmetic units: on a CPU measured in registers, on a GPU that of the product
  double bytes = 0;  ///< the rate of a copy, read and written
  double int8 = 0;   ///< as flops, of products of int8; only of a CPU
};

/// What limits an op: the time below which its FLOPs, and below which its bytes cannot go.
struct Roofline {
  double compute_seconds = 0, memory_seconds = 0;

  double seconds() const { return compute_seconds > memory_seconds ? compute_seconds : memory_seconds; }
};

Roofline roofline_of(const OpPart& part, const Ceilings& ceilings);

/// What was measured with certain options.
struct OpsResult {
  std::string model, dtype;
  int64_t tokens = 0, seq = 0;
  int threads = 0;           ///< in the pool; 0 on a GPU
  std::string tier;          ///< the tier of the GPU's kernels; "" on a CPU
  size_t shared_memory = 0;  ///< bytes a CTA of them may have; 0 on a CPU
  int64_t experts = 0;
  Ceilings ceilings;
  std::vector<OpRow> rows;
};

/// Lists for each op time, FLOP/s, bytes/s, its ceiling and how much of that it reaches, and the kernels of its case.
std::string ops_table(const OpsResult& result, bool color);
Json ops_json(const OpsResult& result);

/// What differs between the results of a sweep.
enum class SweepAxis { kNone, kThreads, kTokens, kExperts };

/// A column for each result: over threads milliseconds and parallel efficiency, over tokens µs a token and over experts
/// milliseconds, both beside the first.
std::string sweep_table(const std::vector<OpsResult>& results, SweepAxis axis, bool color);

/// What has become slower than in `earlier`, both as of ops_json, a line each.
std::vector<std::string> regressions(const Json& now, const Json& earlier);

}  // namespace hone
