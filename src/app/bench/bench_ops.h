// hone bench ops: how fast each op runs at a model's shapes, against what this machine reaches at all.
#pragma once

#include <cstdint>
#include <string>

namespace hone {

struct BenchOpsOptions {
  std::string model;   ///< a shape's name or a config.json, or the folder of one; "": what the device is meant for
  std::string op;      ///< only rows whose name contains this
  int64_t tokens = 0;  ///< 0: 16384 on a GPU, 2048 on a CPU
  int64_t seq = 4096;  ///< tokens of a document, at most `tokens`
  std::string device = "auto";
  std::string dtype = "bfloat16";
  int threads = 0;      ///< 0: all cores
  std::string json;     ///< file for the results; "-": JSON alone on standard output
  std::string compare;  ///< results of an earlier run, which none may fall behind by more than kBenchTolerance
};

/// A row that takes longer than this times what it took is a regression.
inline constexpr double kBenchTolerance = 1.05;

/// Returns the exit code: kCheckFailed for a regression.
int run_bench_ops(const BenchOpsOptions& options);

}  // namespace hone
