#include "app/export/gguf_tokenizer.h"

#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace hone {

namespace {

constexpr const char *kModel = "tokenizer.ggml.model", *kPre = "tokenizer.ggml.pre", *kTokens = "tokenizer.ggml.tokens",
                     *kTypes = "tokenizer.ggml.token_type", *kScores = "tokenizer.ggml.scores",
                     *kMerges = "tokenizer.ggml.merges", *kAddBos = "tokenizer.ggml.add_bos_token",
                     *kAddEos = "tokenizer.ggml.add_eos_token", *kAddSpace = "tokenizer.ggml.add_space_prefix",
                     *kTemplate = "tokenizer.chat_template", *kNoModel = "no_vocab";

/// The keys of special tokens.
std::vector<std::pair<const char*, std::optional<int64_t> GgufVocabulary::*>> special_keys() {
  return {{"tokenizer.ggml.bos_token_id", &GgufVocabulary::bos},
          {"tokenizer.ggml.eos_token_id", &GgufVocabulary::eos},
          {"tokenizer.ggml.eot_token_id", &GgufVocabulary::eot},
          {"tokenizer.ggml.unknown_token_id", &GgufVocabulary::unk},
          {"tokenizer.ggml.padding_token_id", &GgufVocabulary::pad}};
}

}  // namespace

void set_tokenizer_keys(const std::optional<GgufVocabulary>& vocabulary, GgufMetadata& metadata) {
  if (!vocabulary) return metadata.set(kModel, std::string(kNoModel));
  metadata.set(kModel, vocabulary->model);
  if (!vocabulary->pre.empty()) metadata.set(kPre, vocabulary->pre);
  metadata.set(kTokens, vocabulary->tokens);
  metadata.set(kTypes, vocabulary->types);
  if (!vocabulary->scores.empty()) metadata.set(kScores, vocabulary->scores);
  if (vocabulary->model == "gpt2") metadata.set(kMerges, vocabulary->merges);
  for (const auto& [key, id] : special_keys()) {
    if (const auto& held = (*vocabulary).*id; held) metadata.set(key, *held);
  }
  const std::pair<const char*, std::optional<bool>> flags[] = {
      {kAddBos, vocabulary->add_bos}, {kAddEos, vocabulary->add_eos}, {kAddSpace, vocabulary->add_space_prefix}};
  for (const auto& [key, flag] : flags) {
    if (flag) metadata.set(key, *flag);
  }
  if (!vocabulary->chat_template.empty()) metadata.set(kTemplate, vocabulary->chat_template);
}

std::optional<GgufVocabulary> tokenizer_keys(const GgufMetadata& metadata) {
  GgufVocabulary vocabulary;
  vocabulary.model = metadata.text(kModel).value_or(kNoModel);
  if (vocabulary.model == kNoModel) return std::nullopt;
  vocabulary.pre = metadata.text(kPre).value_or("");
  const auto take = [&]<class T>(const char* key, std::vector<T>& values) {
    if (const std::vector<T>* found = metadata.list<T>(key)) values = *found;
  };
  take(kTokens, vocabulary.tokens);
  take(kTypes, vocabulary.types);
  take(kScores, vocabulary.scores);
  take(kMerges, vocabulary.merges);
  if (vocabulary.tokens.empty()) throw UserError("the file has no tokens", metadata.file, "tokenizer.ggml.tokens");
  for (const auto& [key, id] : special_keys()) vocabulary.*id = metadata.integer(key);
  vocabulary.add_bos = metadata.boolean(kAddBos);
  vocabulary.add_eos = metadata.boolean(kAddEos);
  vocabulary.add_space_prefix = metadata.boolean(kAddSpace);
  vocabulary.chat_template = metadata.text(kTemplate).value_or("");
  return vocabulary;
}

}  // namespace hone
