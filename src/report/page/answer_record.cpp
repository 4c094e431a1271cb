#include "report/page/answer_record.h"

#include <algorithm>

#include "core/text/json.h"
#include "report/page/record_rows.h"
#include "report/page/record_text.h"

namespace hone {

void AnswerRecord::add(const Json& row) {
  const std::string prompt = row_text(row, "prompt");
  const Answer answer{.step = row_step(row),
                      .text = clipped(row_text(row, "generated_text"), kMostText),
                      .finished = row_text(row, "finish_reason") == "stop"};
  const auto same = [&](const Prompt& known) { return known.whole == prompt; };
  const auto found = std::find_if(prompts_.begin(), prompts_.end(), same);
  if (found != prompts_.end()) {
    found->last = answer;
  } else if (prompts_.size() < kMostPrompts) {
    prompts_.push_back(
        {.whole = prompt, .expected = clipped(row_text(row, "expected"), kMostText), .first = answer, .last = {}});
  }
}

Json AnswerRecord::json(size_t prompts, size_t text) const {
  const auto to_json = [&](const Answer& answer) {
    return Json{{"step", answer.step}, {"text", clipped(answer.text, text)}, {"finished", answer.finished}};
  };
  Json answers = Json::array();
  for (size_t i = 0; i < std::min(prompts, prompts_.size()); ++i) {
    const Prompt& prompt = prompts_[i];
    Json shown = {{"prompt", clipped(prompt.whole, text)},
                  {"expected", clipped(prompt.expected, text)},
                  {"first", to_json(prompt.first)}};
    if (prompt.last) shown["last"] = to_json(*prompt.last);
    answers.push_back(std::move(shown));
  }
  return answers;
}

}  // namespace hone
