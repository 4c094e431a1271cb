#include "app/eval/eval_answers.h"

#include <algorithm>
#include <map>

#include "app/inference/answer_text.h"
#include "app/inference/inference_model.h"
#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {

namespace {

constexpr int64_t kSequencesAtOnce = 16;

/// Sampling options of the configuration, then those of the model's generation_config.json.
SamplingOptions sampling_of(const RunConfig& config, const std::filesystem::path& model, UsualSampling usual) {
  const RunConfig::Generation& stated = config.generation;
  SamplingOverrides overrides;
  overrides.max_new_tokens = stated.max_new_tokens;
  overrides.temperature = stated.temperature;
  overrides.top_k = stated.top_k;
  overrides.top_p = stated.top_p;
  overrides.repetition_penalty = stated.repetition_penalty;
  overrides.do_sample = stated.do_sample;
  const bool states = stated.do_sample || stated.temperature || stated.top_k || stated.top_p;
  if (usual == UsualSampling::kGreedy && !states) overrides.do_sample = false;
  overrides.seed = static_cast<uint64_t>(config.machine.seed);
  return overrides.apply(read_sampling_defaults(model).options);
}

}  // namespace

const Tokenizer& tokenizer_of(const DescribedRun& described, const std::string& where) {
  if (described.tokenizer() != nullptr) return *described.tokenizer();
  throw UserError("the model has no tokenizer, which prompts need", where,
                  "copy the tokenizer's files into the model folder");
}

ChatPrompt chat_of(const DescribedRun& described, const Tokenizer& tokenizer) {
  const RunConfig::Data& data = described.config.data;
  ChatTemplateSource source{described.loaded->chat_template, "chat_template"};
  if (!data.chat_template_file.empty()) source = read_chat_template(data.chat_template_file);
  return ChatPrompt(tokenizer, source, data.split_special_tokens);
}

std::string cut_at(std::string text, const std::vector<std::string>& until) {
  for (const std::string& end : until) text = text.substr(0, text.find(end));
  return text;
}

std::vector<std::string> answers_of(const EvaluationRun& run, const std::vector<PromptRow>& prompts,
                                    UsualSampling usual, const std::vector<std::string>& until) {
  if (prompts.empty()) return {};
  const DescribedRun& described = run.described;
  const Tokenizer& tokenizer = *described.tokenizer();
  GenerationRequest request;
  request.sampling = sampling_of(described.config, described.model->directory(), usual);
  request.stop_ids = tokenizer.special_tokens().stop;
  for (const PromptRow& prompt : prompts) request.prompts.push_back(prompt.ids);
  std::map<size_t, AnswerText> texts;
  if (!until.empty()) {
    request.ends = [&](size_t sequence, int32_t id) {
      AnswerText& text = texts.try_emplace(sequence, tokenizer, AnswerTextOptions{.stop = until}).first->second;
      text.push(id);
      return text.stopped();
    };
  }
  Decoder& decoder = described.model->decoder();
  const int64_t max_length =
      longest_sequence(prompts, request.sampling.max_new_tokens, context_length(decoder.config().rope));
  Stream& stream = run.context().stream;
  decoder.prepare(stream, max_length);
  PassCompanions companions(
      decoder, described.model->store(), stream,
      {.ranks = PassRanks(run.group.mesh()), .weight_fetch = described.config.machine.weight_fetch});
  const auto sequences = std::min(kSequencesAtOnce, static_cast<int64_t>(prompts.size()));
  Generator generator(companions, {.max_sequences = sequences, .max_length = max_length});
  std::vector<std::string> answers;
  for (const GeneratedSequence& sequence : generator.generate(request)) {
    answers.push_back(cut_at(tokenizer.decode(sequence.answer(), true), until));
  }
  return answers;
}

}  // namespace hone
