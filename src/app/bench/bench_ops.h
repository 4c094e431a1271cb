// hone bench ops: how fast each op runs at a model's shapes, against what this machine reaches at all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hone {

struct BenchOpsOptions {
  std::string model;  ///< a shape's name or a config.json, or the folder of one; "": what the device is for, or a shape
                      ///< that has the op
  std::string op;     ///< only rows of this op (NAME of NAME_bench.cpp), or whose name contains this
  int64_t seq = 4096;  ///< tokens of a document, at most the tokens of the op
  std::string device = "auto";
  std::string dtype = "bfloat16";
  bool decode = false;      ///< a pass that adds one token to each of `tokens` sequences of `seq`, in graphs on a GPU
  std::string fp8 = "off";  ///< a recipe: products of dense matrices, forward and all gradients
  std::string json;         ///< file for the results; "-": JSON alone on standard output
  bool force = false;       ///< replace that file even if it is not an earlier result
  std::string compare;      ///< results of an earlier run, which none may fall behind by more than kBenchTolerance

  // One of these may have several values: the ops are run with each of them.
  std::vector<int64_t> tokens = {0};   ///< 0: 16384 on a GPU, 2048 on a CPU, 64 of a pass of `decode`
  std::vector<int64_t> experts = {0};  ///< in all, of a MoE layer; 0: the model's
  std::vector<int> threads = {0};      ///< 0: all cores
};

/// Returns the exit code: kCheckFailed for a regression.
int run_bench_ops(const BenchOpsOptions& options);

}  // namespace hone
