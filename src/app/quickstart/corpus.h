// The quickstart's data: questions and answers, drawn from a seed and written as chat data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "app/quickstart/sentence.h"
#include "core/json_fwd.h"

namespace hone {

/// A calendar sentence and its moment in ISO 8601.
struct Example {
  std::string question, answer;
};

struct ExampleRequest {
  Language language = Language::kEnglish;
  Phrasing phrasing = Phrasing::kTaught;
  bool held_out = false;  ///< of moments kept for tests; false: of all others
  int64_t count = 0;
};

/// Examples of distinct moments; a function of the request and the seed.
std::vector<Example> draw_examples(const ExampleRequest& request, uint64_t seed);

/// The conversation [{"role": "user", …}] that asks an example's question.
Json question_messages(const Example& example);

/// Writes one {"messages": [user, assistant]} a line.
void write_chat_data(const std::vector<Example>& examples, const std::filesystem::path& file);

}  // namespace hone
