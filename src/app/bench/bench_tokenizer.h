// hone bench tokenizer: how fast a tokenizer reads and writes text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hone {

struct BenchTokenizerOptions {
  std::string tokenizer;           ///< a tokenizer.json, or the folder of one
  std::vector<std::string> texts;  ///< files of UTF-8 text, each with a row of its own
  int64_t chunk = 16384;           ///< bytes of a text that are encoded at once, up to a line end
  double seconds = 1;              ///< CPU time spent on each number
  int threads = 0;                 ///< 0: all cores
  std::string json;                ///< file for the results; "-": JSON alone on standard output
  bool force = false;              ///< replace that file even if it is not an earlier result
};

/// Returns the exit code.
int run_bench_tokenizer(const BenchTokenizerOptions& options);

}  // namespace hone
