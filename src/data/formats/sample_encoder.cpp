#include "data/formats/sample_encoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "data/formats/text_key.h"

namespace hone {

namespace {

/// Adds bos to the tokens before a text, or removes it.
void set_bos(const Tokenizer& tokenizer, bool add, std::vector<int32_t>& leading) {
  const std::optional<int32_t> bos = tokenizer.special_tokens().bos;
  if (!bos) {
    if (!add) return;
    throw UserError("add_bos_token is true, but the tokenizer has no bos_token", "add_bos_token",
                    "remove it, or set one: special_tokens: {bos_token: TOKEN}");
  }
  std::erase(leading, *bos);
  if (add) leading.insert(leading.begin(), *bos);
}

/// False for tokenizers that add a space before every text.
bool parts_join(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.encode("a", false);
  const std::vector<int32_t> second = tokenizer.encode("b", false);
  ids.insert(ids.end(), second.begin(), second.end());
  return tokenizer.decode(ids, false) == "ab";
}

}  // namespace

std::vector<int32_t> leading_ids(const Tokenizer& tokenizer) {
  const Encoding encoding = tokenizer.encode_with_offsets("a", true);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < encoding.ids.size() && encoding.offsets[i].end == 0; ++i) ids.push_back(encoding.ids[i]);
  return ids;
}

SampleEncoder::SampleEncoder(const Tokenizer* tokenizer, const ChatEncoderOptions& options, int64_t vocab_size)
    : tokenizer_(tokenizer), train_on_(options.train_on), add_eos_(options.add_eos), vocab_size_(vocab_size) {
  if (!tokenizer) return;
  chat_.emplace(*tokenizer, options);
  leading_ids_ = leading_ids(*tokenizer);
  if (options.add_bos) set_bos(*tokenizer, *options.add_bos, leading_ids_);
  parts_join_ = parts_join(*tokenizer);
}

EncodedRow SampleEncoder::encode(FormattedRow formatted, const std::string& where) const {
  EncodedRow row;
  if (auto* tokens = std::get_if<TokenizedRow>(&formatted)) {
    TextKey key;
    key.add(tokens->input_ids);
    key.add(tokens->labels);
    row.text_key = key.value();
    row.sample = {std::move(tokens->input_ids), std::move(tokens->labels), std::move(tokens->weights)};
    if (row.sample.supervised() == 0) row.nothing_learnt = "no label after the first token is trained on";
    check_ids(row.sample, false, where);
    return row;
  }
  if (!tokenizer_) {
    throw UserError("the model folder has no tokenizer.json, which text needs", where,
                    "put tokenizer.json next to config.json, or use tokenized data");
  }
  if (const auto* conversation = std::get_if<Conversation>(&formatted)) {
    row = chat_->encode(*conversation, where);
  } else {
    row = encode_completion(std::get<PromptCompletion>(formatted));
  }
  check_ids(row.sample, true, where);
  for (const Sample& sample : row.expanded) check_ids(sample, true, where);
  return row;
}

int64_t SampleEncoder::count_tokens(std::string_view text) const {
  const std::vector<int32_t> ids = text.empty() ? std::vector<int32_t>() : tokenizer_->encode(text, false);
  return std::ssize(leading_ids_) + std::ssize(ids) + (tokenizer_->special_tokens().eos ? 1 : 0);
}

EncodedRow SampleEncoder::encode_completion(const PromptCompletion& text) const {
  EncodedRow row;
  std::vector<int32_t>& ids = row.sample.input_ids;
  ids = leading_ids_;
  size_t learnt_from = 0;
  if (parts_join_ || text.encoded_apart) {
    const std::vector<int32_t> prompt = tokenizer_->encode(text.prompt, false);
    const std::vector<int32_t> completion = tokenizer_->encode(text.completion, false);
    ids.reserve(ids.size() + prompt.size() + completion.size() + 1);
    ids.insert(ids.end(), prompt.begin(), prompt.end());
    learnt_from = ids.size();
    ids.insert(ids.end(), completion.begin(), completion.end());
  } else {
    const Encoding whole = tokenizer_->encode_with_offsets(text.prompt + text.completion, false);
    const auto first = std::partition_point(whole.offsets.begin(), whole.offsets.end(),
                                            [&](const ByteRange& token) { return token.end <= text.prompt.size(); });
    learnt_from = ids.size() + static_cast<size_t>(first - whole.offsets.begin());
    ids.insert(ids.end(), whole.ids.begin(), whole.ids.end());
  }
  const SpecialTokens& special = tokenizer_->special_tokens();
  const bool ended =
      ids.size() > learnt_from && std::find(special.stop.begin(), special.stop.end(), ids.back()) != special.stop.end();
  if (add_eos_ && special.eos && !ended) ids.push_back(*special.eos);
  row.doubled_bos = begins_with_two_bos(ids, special);
  TextKey key;
  key.add(text.prompt);
  key.add(text.completion);
  row.text_key = key.value();
  row.sample.labels = ids;
  if (train_on_ != TrainOn::kAll) {
    std::fill_n(row.sample.labels.begin(), learnt_from, kIgnoredLabel);
  }
  if (row.sample.supervised() == 0) row.nothing_learnt = "the supervised part is empty, or the text is a single token";
  return row;
}

void SampleEncoder::check_ids(const Sample& sample, bool from_text, const std::string& where) const {
  for (size_t i = 0; i < sample.input_ids.size(); ++i) {
    const int32_t id = sample.input_ids[i], label = sample.labels[i];
    if (id < 0 || id >= vocab_size_) {
      const auto token = from_text ? tokenizer_->id_to_token(id) : std::nullopt;
      throw UserError(from_text
                          ? fmt::format("token id {} ('{}') is not in the model's vocabulary of {}", id,
                                        token.value_or("?"), vocab_size_)
                          : fmt::format("input_ids[{}] is {}, not in the model's vocabulary of {}", i, id, vocab_size_),
                      where,
                      from_text ? "the tokenizer has tokens that the model's embedding has no row for: use the model's "
                                  "own tokenizer, or resize_vocab: true, which adds rows"
                                : "the data was tokenized for another model");
    }
    if (label != kIgnoredLabel && (label < 0 || label >= vocab_size_)) {
      throw UserError(
          fmt::format("labels[{}] is {}, neither -100 nor in the model's vocabulary of {}", i, label, vocab_size_),
          where, "-100 marks tokens without loss");
    }
  }
}

}  // namespace hone
