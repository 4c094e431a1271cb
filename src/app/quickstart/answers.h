// What a model does with examples: its answers, how many are right to the last character, and the experts that
// sentences go to.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/quickstart/corpus.h"
#include "core/stream.h"
#include "train/engine.h"

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

// Which experts the sentences of a data file go to.

/// Expert choices of the first `samples` chats of a data file, by layer and expert.
RoutingLoad measure_expert_load(const std::filesystem::path& model, const std::filesystem::path& data, int64_t samples,
                                Stream& stream);

}  // namespace hone
