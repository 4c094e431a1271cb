#include "app/quickstart/corpus.h"

#include <set>

#include "core/json.h"
#include "weights/checkpoint.h"

namespace hone {

std::vector<Example> draw_examples(const ExampleRequest& request, uint64_t seed) {
  const uint64_t use = (request.language == Language::kGerman ? 1u : 0u) +
                       (request.phrasing == Phrasing::kNew ? 2u : 0u) + (request.held_out ? 4u : 0u);
  PhiloxSequence random(mix_key(seed, use));
  std::set<DateTime> seen;
  std::vector<Example> examples;
  examples.reserve(static_cast<size_t>(request.count));
  while (static_cast<int64_t>(examples.size()) < request.count) {
    const DateTime moment = draw_moment(random);
    if (is_held_out(moment) != request.held_out || !seen.insert(moment).second) continue;
    examples.push_back({calendar_sentence(moment, request.language, request.phrasing, random), iso(moment)});
  }
  return examples;
}

Json question_messages(const Example& example) {
  return Json::array({{{"role", "user"}, {"content", example.question}}});
}

void write_chat_data(const std::vector<Example>& examples, const std::filesystem::path& file) {
  std::string text;
  for (const Example& example : examples) {
    Json messages = question_messages(example);
    messages.push_back({{"role", "assistant"}, {"content", example.answer}});
    text += Json{{"messages", std::move(messages)}}.dump() + "\n";
  }
  write_text_file(file, text);
}

}  // namespace hone
