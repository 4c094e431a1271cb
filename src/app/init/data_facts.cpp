#include "app/init/data_facts.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/text/json.h"
#include "data/dataset/dataset_report.h"
#include "data/formats/row_formats.h"
#include "data/formats/sample_encoder.h"
#include "text/chat_mask.h"
#include "text/thinking.h"
#include "text/tiktoken.h"
#include "text/tokenizer.h"

namespace hone {

namespace {

std::optional<Tokenizer> tokenizer_in(const std::filesystem::path& directory) {
  if (directory.empty() || !has_tokenizer(directory)) return std::nullopt;
  return Tokenizer::load(directory);
}

std::string switch_of(const Tokenizer& tokenizer) {
  const auto source = tokenizer.chat_template();
  if (!source) return {};
  const ChatTemplate chat_template(*source, "chat_template");
  return thinking_switch(chat_template, special_token_variables(tokenizer)).value_or("");
}

/// In tokens, of samples of rewritten answers: later ones would make the time of a long chat grow with its square.
constexpr size_t kLongestMeasured = 8192;

/// Lengths of rows at even distances, which double when the list is full.
class SpacedLengths {
 public:
  /// Whether the next row is measured. Call once for each row.
  bool wants_next() { return rows_++ % every_ == 0; }

  void add(int64_t longest, int64_t tokens) {
    lengths_.push_back({longest, tokens});
    if (lengths_.size() < kMost) return;
    for (size_t i = 0; i < kMost / 2; ++i) lengths_[i] = lengths_[2 * i];
    lengths_.resize(kMost / 2);
    every_ *= 2;
  }

  SampleLengths summary() const {
    if (lengths_.empty()) return {};
    std::vector<int32_t> longest;
    double tokens = 0;
    for (const Row& row : lengths_) {
      longest.push_back(static_cast<int32_t>(std::min<int64_t>(row.longest, INT32_MAX)));
      tokens += static_cast<double>(row.tokens);
    }
    const LengthSummary summary = summarise_lengths(std::move(longest));
    const double mean = tokens / static_cast<double>(lengths_.size());
    return {.rows = rows_,
            .tokens = std::llround(mean * static_cast<double>(rows_)),
            .p99 = summary.p99,
            .longest = summary.max};
  }

 private:
  static constexpr size_t kMost = 4096;
  struct Row {
    int64_t longest = 0, tokens = 0;
  };

  std::vector<Row> lengths_;
  int64_t rows_ = 0, every_ = 1;
};

/// The beginning of a long text that stands for all of it, cut where no character is: a book takes no minute then.
std::string_view measured_part(std::string_view text) {
  constexpr size_t kMost = size_t{1} << 18;
  if (text.size() <= kMost) return text;
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

void measure(const SampleEncoder& encoder, FormattedRow row, const std::string& where, SpacedLengths& lengths) {
  double scale = 1;
  if (auto* text = std::get_if<PromptCompletion>(&row)) {
    const auto whole = static_cast<double>(text->completion.size());
    text->completion = std::string(measured_part(text->completion));
    if (!text->completion.empty()) scale = whole / static_cast<double>(text->completion.size());
  }
  const EncodedRow encoded = encoder.encode(std::move(row), where);
  int64_t longest = 0, tokens = 0;
  const auto count = [&](const Sample& sample) {
    const int64_t length = std::llround(scale * static_cast<double>(sample.input_ids.size()));
    longest = std::max(longest, length);
    tokens += length;
  };
  count(encoded.sample);
  for (const Sample& sample : encoded.expanded) count(sample);
  lengths.add(longest, tokens);
}

}  // namespace

DataFacts look_at_data(const std::filesystem::path& directory, const DatasetEntry& entry, int64_t vocab_size) {
  DataFacts facts;
  const std::optional<Tokenizer> tokenizer = tokenizer_in(directory);
  if (tokenizer) facts.thinking_switch = switch_of(*tokenizer);
  if (entry.path.empty()) return facts;
  SpacedLengths lengths;
  int64_t texts = 0;
  try {
    const SampleEncoder encoder(tokenizer ? &*tokenizer : nullptr, {.longest_sample = kLongestMeasured}, vocab_size);
    DatasetReader reader(entry);
    for (DatasetRow row; reader.next(row); ++facts.rows) {
      FormattedRow formatted = read_row(row, entry.mapping);
      texts += row.format == SampleFormat::kText ? 1 : 0;
      if (const auto* conversation = std::get_if<Conversation>(&formatted)) {
        ++facts.chats;
        facts.with_thoughts += has_thoughts(*conversation) ? 1 : 0;
      }
      if (!facts.unmeasured.empty() || !lengths.wants_next()) continue;
      try {
        measure(encoder, std::move(formatted), row.where(), lengths);
      } catch (const UserError& error) {
        facts.unmeasured = error.message();
      }
    }
  } catch (const UserError& error) {
    facts.problem = error.message();
    facts.rows = facts.chats = facts.with_thoughts = 0;
    return facts;
  }
  facts.plain_text = facts.rows > 0 && texts == facts.rows;
  if (facts.unmeasured.empty()) facts.lengths = lengths.summary();
  return facts;
}

BatchSizes batch_sizes(const DataFacts& data, int64_t model_length, int64_t most_sequences) {
  constexpr int64_t kUsualLength = 4096;
  constexpr int64_t kShortest = 128, kRounding = 64;
  constexpr int64_t kStepsPerEpoch = 32;
  const int64_t usual = std::min(model_length, kUsualLength);
  const SampleLengths& lengths = data.lengths;
  if (lengths.rows == 0) return {.max_length = usual, .per_device = 1, .global = most_sequences};
  BatchSizes sizes;
  const int64_t held = lengths.longest <= 2 * lengths.p99 ? lengths.longest : lengths.p99;
  const int64_t rounded = std::max(kShortest, (held + kRounding - 1) / kRounding * kRounding);
  sizes.max_length = std::min(rounded, data.plain_text ? usual : model_length);
  const auto power_of_two = [](int64_t most) {
    return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, most))));
  };
  const int64_t of_step = most_sequences * std::max(kUsualLength, sizes.max_length);
  sizes.global = power_of_two(std::min(of_step, lengths.tokens / kStepsPerEpoch) / sizes.max_length);
  sizes.per_device = std::min(sizes.global, power_of_two(kUsualLength / sizes.max_length));
  sizes.steps_per_epoch = std::max<int64_t>(1, lengths.tokens / (sizes.global * sizes.max_length));
  return sizes;
}

}  // namespace hone
