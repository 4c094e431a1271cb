// Generates answers of the trained model to a few prompts of its data at evaluations.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "core/text/json.h"
#include "infer/generator.h"
#include "report/terminal.h"
#include "train/report/run_rows.h"
#include "train/run/run_observer.h"

namespace hone {

namespace {

struct SampleAnswer {
  std::string prompt, generated, expected;
  bool finished = false;  ///< ended by the model, not by a limit
  int64_t tokens = 0;     ///< generated
};

struct Split {
  std::vector<int32_t> prompt, expected;
};

/// The prompt is the text before the first supervised token; of a sample that is supervised from its start, its first
/// half. The expected answer is the rest of the sample, up to the next unsupervised token.
Split split(const SampleView& sample) {
  const auto length = static_cast<int64_t>(sample.input_ids.size());
  int64_t first = 1;
  while (first < length && sample.labels[static_cast<size_t>(first)] == kIgnoredLabel) ++first;
  if (first <= 1) first = std::max<int64_t>(length / 2, 1);
  int64_t last = first;
  while (last < length && sample.labels[static_cast<size_t>(last)] != kIgnoredLabel) ++last;
  const auto begin = sample.input_ids.begin();
  return {{begin, begin + first}, {begin + first, begin + last}};
}

/// The longest suffix of `text` that fits the width.
std::string end_of(const std::string& text, int width) {
  std::string line = one_line(text);
  if (display_width(line) <= width) return line;
  while (display_width(line) > width - 1) {
    // A character of UTF-8 is a leading byte and continuation bytes.
    do line.erase(0, 1);
    while (!line.empty() && (static_cast<unsigned char>(line.front()) & 0xC0) == 0x80);
  }
  return "…" + line;
}

/// Prompt, answer and expected answer of each sample, for the log.
std::string text_of(const std::vector<SampleAnswer>& answers, int width, bool color) {
  constexpr int kLabel = 13;  // margin and label
  std::string text;
  for (const SampleAnswer& answer : answers) {
    const int room = std::max(width - kLabel, 20);
    const auto line = [&](const char* label, const std::string& value, Style style) {
      text += "  " + styled(pad_right(label, kLabel - 2), Style::kDim, color) + styled(value, style, color) + "\n";
    };
    line("prompt", end_of(answer.prompt, room), Style::kPlain);
    line("generated", fit_width(one_line(answer.generated), room), Style::kBold);
    line("expected", fit_width(one_line(answer.expected), room), Style::kPlain);
  }
  return text;
}

Json to_json(const SampleAnswer& answer) {
  return {{"prompt", answer.prompt},
          {"generated_text", answer.generated},
          {"expected", answer.expected},
          {"finish_reason", answer.finished ? "stop" : "length"},
          {"generated_tokens", answer.tokens}};
}

SamplingOptions sampling_of(const LoadedRun& run) {
  const RunConfig::Generation& stated = run.config().generation;
  SamplingOptions sampling = read_sampling_defaults(run.model().directory()).options;
  sampling.max_new_tokens = stated.max_new_tokens;
  sampling.temperature = stated.temperature.value_or(sampling.temperature);
  sampling.top_p = stated.top_p.value_or(sampling.top_p);
  sampling.top_k = stated.top_k.value_or(sampling.top_k);
  sampling.repetition_penalty = stated.repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.do_sample = stated.do_sample.value_or(sampling.do_sample);
  sampling.seed = static_cast<uint64_t>(run.config().machine.seed);
  return sampling;
}

/// Answers to samples spread evenly over the evaluation data. Without a tokenizer texts are shown as token ids.
class SampleAnswers : public RunObserver {
 public:
  /// Allocates the generator's memory.
  explicit SampleAnswers(const LoadedRun& run) : run_(run) {
    const SampleStore& samples = run.data().eval;
    request_.sampling = sampling_of(run);
    if (const Tokenizer* tokenizer = run.described().tokenizer()) {
      request_.stop_ids = tokenizer->special_tokens().stop;
    }
    const int64_t count = std::min(run.config().generation.num_generation_samples, samples.size());
    int64_t longest = 0;
    for (int64_t i = 0; i < count; ++i) {
      Split sample = split(samples[i * samples.size() / count]);
      longest = std::max(longest, static_cast<int64_t>(sample.prompt.size()));
      request_.prompts.push_back(std::move(sample.prompt));
      expected_.push_back(std::move(sample.expected));
    }
    GeneratorOptions options{
        .max_sequences = count,
        .max_length = std::min(*run.config().data.max_length, longest + request_.sampling.max_new_tokens)};
    options.deals_prompts = run.store().shards_values();
    generator_.emplace(run.engine().companions(), options);
    if (run.context().writes()) file_.emplace(open_run_rows(run, "generations.jsonl"));
  }

  void evaluating(const LossResult&, EvalMetrics& metrics) override {
    const std::vector<SampleAnswer> answers = generate();
    if (!file_) return;
    double finished = 0, tokens = 0;
    for (const SampleAnswer& answer : answers) {
      Json row = {{"step", metrics.step}};
      row.update(to_json(answer));
      file_->append(row);
      finished += answer.finished;
      tokens += static_cast<double>(answer.tokens);
    }
    metrics.generation_finished = finished / static_cast<double>(answers.size());
    metrics.generation_tokens = tokens / static_cast<double>(answers.size());
    Logger& logger = run_.logger();
    logger.block(text_of(answers, logger.console().width(), logger.console().color()));
  }

 private:
  std::vector<SampleAnswer> generate() {
    const std::vector<GeneratedSequence> sequences = generator_->generate(request_);
    std::vector<SampleAnswer> answers;
    for (size_t i = 0; i < sequences.size(); ++i) {
      answers.push_back({.prompt = decoded(request_.prompts[i]),
                         .generated = decoded(sequences[i].ids),
                         .expected = decoded(expected_[i]),
                         .finished = sequences[i].finish == FinishReason::kStop,
                         .tokens = static_cast<int64_t>(sequences[i].ids.size())});
    }
    return answers;
  }

  std::string decoded(const std::vector<int32_t>& ids) const {
    const Tokenizer* tokenizer = run_.described().tokenizer();
    return tokenizer ? tokenizer->decode(ids, false) : fmt::format("{}", fmt::join(ids, " "));
  }

  const LoadedRun& run_;
  GenerationRequest request_;
  std::vector<std::vector<int32_t>> expected_;
  std::optional<Generator> generator_;
  std::optional<MetricsFile> file_;  // on the rank that writes
};

}  // namespace

std::unique_ptr<RunObserver> sample_answers(const LoadedRun& run) {
  const RunConfig::Generation& stated = run.config().generation;
  // If ranks share the weights, generation is collective.
  const bool takes_part = run.context().writes() || run.store().shards_values();
  if (!takes_part || !stated.generate_samples || stated.num_generation_samples <= 0) return nullptr;
  return std::make_unique<SampleAnswers>(run);
}

}  // namespace hone
