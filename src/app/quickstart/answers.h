// What a model answers to examples, and how many answers are right to the last character.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/quickstart/corpus.h"
#include "core/stream.h"

namespace hone {

/// A model folder, with an adapter beside it or alone.
struct ModelPath {
  std::filesystem::path model, adapter = {};  ///< adapter empty: none
};

/// Answers to examples, in their order.
struct Answers {
  std::vector<std::string> texts;
  int64_t right = 0;

  /// Exact matches, in [0, 1].
  double accuracy() const;
};

/// Asks every question as a chat, greedily, many at once.
Answers ask(const ModelPath& path, const std::vector<Example>& examples, Stream& stream);

}  // namespace hone
