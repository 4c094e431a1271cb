#include "train/sample_answers.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/terminal.h"

namespace hone {

namespace {

struct Split {
  std::vector<int32_t> prompt, expected;
};

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

/// The end of a text that fits the width.
std::string end_of(const std::string& text, int width) {
  std::string line = one_line(text);
  if (display_width(line) <= width) return line;
  while (display_width(line) > width - 1) {
    // A character of UTF-8 is a leading byte and what continues it.
    do line.erase(0, 1);
    while (!line.empty() && (static_cast<unsigned char>(line.front()) & 0xC0) == 0x80);
  }
  return "…" + line;
}

}  // namespace

SampleAnswers::SampleAnswers(const SampleStore& samples, const Tokenizer* tokenizer, const Decoder& decoder,
                             Stream& stream, const SampleAnswerOptions& options)
    : tokenizer_(tokenizer) {
  request_.sampling = options.sampling;
  if (tokenizer) request_.stop_ids = tokenizer->special_tokens().stop;
  const int64_t count = std::min(options.count, samples.size());
  int64_t longest = 0;
  for (int64_t i = 0; i < count; ++i) {
    Split sample = split(samples[i * samples.size() / count]);
    longest = std::max(longest, static_cast<int64_t>(sample.prompt.size()));
    request_.prompts.push_back(std::move(sample.prompt));
    expected_.push_back(std::move(sample.expected));
  }
  const int64_t max_length = std::min(options.max_length, longest + options.sampling.max_new_tokens);
  generator_ = std::make_unique<Generator>(
      decoder, stream,
      GeneratorOptions{.max_sequences = count, .max_length = max_length, .together = options.together});
}

SampleAnswers::~SampleAnswers() = default;

std::string SampleAnswers::text_of(const std::vector<int32_t>& ids) const {
  return tokenizer_ ? tokenizer_->decode(ids, false) : fmt::format("{}", fmt::join(ids, " "));
}

std::vector<SampleAnswer> SampleAnswers::generate() {
  const std::vector<GeneratedSequence> sequences = generator_->generate(request_);
  std::vector<SampleAnswer> answers;
  for (size_t i = 0; i < sequences.size(); ++i) {
    answers.push_back({.prompt = text_of(request_.prompts[i]),
                       .generated = text_of(sequences[i].ids),
                       .expected = text_of(expected_[i]),
                       .finished = sequences[i].finish == FinishReason::kStop,
                       .tokens = static_cast<int64_t>(sequences[i].ids.size())});
  }
  return answers;
}

std::string sample_answers_text(const std::vector<SampleAnswer>& answers, int width, bool color) {
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

}  // namespace hone
