#include "library/library_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "app/inference/generation_prompts.h"
#include "app/inference/inference_options.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "library/settings.h"
#include "library/verb_words.h"

namespace hone {

namespace {

constexpr int64_t kMaxLength = 4096, kMaxSequences = 16;

LibraryModelSettings parse_settings(JsonValue settings) {
  LibraryModelSettings parsed;
  parsed.generator.max_length = take_size(settings, "max_length", kMaxLength);
  parsed.generator.max_sequences = take_size(settings, "max_sequences", kMaxSequences);
  parsed.inference = parse_inference(verb_words("generate", settings));
  return parsed;
}

const char* name_of(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : reason == FinishReason::kLength ? "length" : "stopped";
}

std::vector<PromptRow> read_prompts(const Json& prompts, const PromptReader& reader) {
  if (!prompts.is_array() || prompts.empty()) {
    throw UserError("there is nothing to answer", "request: prompts", "pass a list of texts, chats or rows");
  }
  std::vector<PromptRow> rows;
  for (const Json& prompt : prompts) {
    const std::string where = fmt::format("prompts[{}]", rows.size());
    if (prompt.is_string()) {
      rows.push_back(reader.read_text(prompt.get<std::string>(), where));
    } else {
      rows.push_back(reader.read_row(prompt.is_array() ? Json{{"messages", prompt}} : prompt, where));
    }
  }
  return rows;
}

}  // namespace

LibraryModel::LibraryModel(const JsonValue& settings, const Tell& tell)
    : LibraryModel(parse_settings(settings), tell) {}

LibraryModel::LibraryModel(LibraryModelSettings settings, const Tell& tell) : model_(settings.inference) {
  settings.generator.max_length = std::min(settings.generator.max_length, model_.context());
  for (const std::string& note : model_.notes()) tell(note + "\n");
  model_.connect({});
  generator_ = &model_.load(settings.generator, [&](const std::string& line) { tell(line + "\n"); });
}

JsonValue LibraryModel::generate(const JsonValue& asked, const OnText& on_text, const std::function<bool()>& stop) {
  JsonValue request = asked;
  const bool raw = take_switch(request, "raw");
  const PromptReader reader(model_.tokenizer(), model_.chat(),
                            {.system = {}, .template_variables = model_.template_variables(), .raw = raw});
  const std::vector<PromptRow> prompts = read_prompts(request->value("prompts", Json()), reader);
  request->erase("prompts");
  (*request)["model"] = "-";  // the option that the parser requires
  GenerationRequest generation;
  generation.sampling = parse_inference(verb_words("generate", request)).sampling.apply(model_.sampling());
  generation.stop_ids = model_.stop_ids();
  for (const PromptRow& prompt : prompts) generation.prompts.push_back(prompt.ids);

  std::vector<StreamDecoder> decoders(prompts.size(), StreamDecoder(model_.tokenizer(), true));
  bool stopped = false;
  generation.on_token = [&](size_t sequence, int32_t id) {
    if (model_.is_stop(id)) return;
    const std::string text = decoders[sequence].push(id);
    if (!text.empty()) stopped |= on_text(static_cast<int64_t>(sequence), text);
  };
  generation.stop = [&] { return stopped || stop(); };
  const std::vector<GeneratedSequence> sequences = generator_->generate(generation);

  Json answers = Json::array();
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (const std::string rest = decoders[i].finish(); !rest.empty()) on_text(static_cast<int64_t>(i), rest);
    answers.push_back({{"text", model_.tokenizer().decode(sequences[i].answer(), true)},
                       {"finish_reason", name_of(sequences[i].finish)},
                       {"prompt_tokens", prompts[i].ids.size()},
                       {"generated_tokens", sequences[i].ids.size()}});
  }
  return Json{{"answers", std::move(answers)}};
}

}  // namespace hone
