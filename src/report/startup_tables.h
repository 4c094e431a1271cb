// What a run prints before its first step: which parameters are trained, and where the memory goes.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace hone {

struct ParameterGroupRow {
  std::string group = {};
  int64_t tensors = 0;
  int64_t parameters = 0;            ///< all elements of the group
  int64_t trainable_parameters = 0;  ///< those that the optimizer changes
};

/// group × tensors × parameters × trainable, with a total.
std::string parameter_table(std::span<const ParameterGroupRow> rows, bool color);

/// "trainable params: 4,194,304 || all params: 6,742,609,920 || trainable%: 0.0622" (PEFT's line).
std::string trainable_summary(int64_t trainable, int64_t all);

struct MemoryRow {
  std::string what = {};  ///< weights, gradients, optimizer, activations, …
  uint64_t bytes = 0;
  std::string note = {};  ///< e.g. "float32 moments"
};

/// what × bytes × share × note, with the total; against `available` bytes (0: unknown) as "9.8 GB of 16.0 GB".
std::string memory_table(std::span<const MemoryRow> rows, uint64_t available, bool color);

/// The same in a line: "memory 153 MB of 24.7 GB: weights 7.9 MB, gradients 7.9 MB". Rows of 0 bytes are left out.
std::string memory_line(std::span<const MemoryRow> rows, uint64_t available);

}  // namespace hone
