// The first and the last answer to each prompt of generations.jsonl.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/text/json_fwd.h"

namespace hone {

/// Collects the rows of generations.jsonl.
class AnswerRecord {
 public:
  /// Prompts that are new when there are kMostPrompts are left out.
  void add(const Json& row);

  /// [{prompt, expected, first: {step, text, finished}, last, if there are several}] of the first `prompts`, each text
  /// cut to `text` bytes.
  Json json(size_t prompts, size_t text) const;

  static constexpr size_t kMostPrompts = 12, kMostText = 4000;

 private:
  struct Answer {
    int64_t step = 0;
    std::string text;
    bool finished = false;
  };
  struct Prompt {
    std::string whole;  // tells prompts apart
    std::string expected;
    Answer first;
    std::optional<Answer> last;
  };

  std::vector<Prompt> prompts_;
};

}  // namespace hone
