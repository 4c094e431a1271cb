#include "train/plan/run_vocabulary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

#include "config/run_options.h"
#include "core/base/error.h"
#include "models/registry.h"
#include "session/model_path.h"
#include "text/tokenizer.h"
#include "train/plan/adapter_tokenizer.h"
#include "weights/adapter_folder.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

/// The keys that add rows, as far as they are stated: "add_tokens, resize_vocab".
std::string stated_keys(const RunConfig::Model& model) {
  std::vector<std::string> keys;
  if (!model.add_tokens.empty()) keys.emplace_back("add_tokens");
  if (!model.add_special_tokens.empty()) keys.emplace_back("add_special_tokens");
  if (model.resize_vocab) keys.emplace_back("resize_vocab");
  return fmt::format("{}", fmt::join(keys, ", "));
}

struct TokensOfRun {
  int64_t rows = 0;                       ///< that an embedding needs for all tokens
  std::vector<std::string> added, known;  ///< what the configuration names: new ones, and those that the tokenizer has
};

/// Compares the tokens to add with the tokenizer of `folder`.
TokensOfRun tokens_of(const RunConfig& config, const fs::path& folder) {
  const NewTokens more = new_tokens(config);
  const Tokenizer before = Tokenizer::load(folder), after = Tokenizer::load(folder, more);
  TokensOfRun tokens{after.vocab_size(), {}, {}};
  for (const auto* list : {&more.plain, &more.special}) {
    for (const std::string& token : *list) {
      const bool known = before.token_to_id(token).has_value();
      (known ? tokens.known : tokens.added).push_back(token);
      const int32_t id = after.token_to_id(token).value();
      if (known || !before.id_to_token(id)) continue;
      throw UserError(fmt::format("'{}' would get the id {} of '{}', since ids of the vocabulary have gaps", token, id,
                                  *before.id_to_token(id)),
                      folder.string(),
                      "write it into added_tokens of tokenizer.json yourself, in place of a free token");
    }
  }
  return tokens;
}

/// With adapters, the embedding and the head are trained whole. Also stated for a full run, for what `hone estimate`
/// plans with adapters in its place.
void train_rows(RunConfig& config, std::vector<std::string>& notes) {
  std::vector<WholeModule>& saved = config.lora.modules_to_save;
  for (const WholeModule module : {WholeModule::kEmbedding, WholeModule::kHead}) {
    if (std::find(saved.begin(), saved.end(), module) != saved.end()) continue;
    saved.push_back(module);
    if (config.model.finetuning_type != FinetuningType::kLora) continue;
    notes.push_back(
        fmt::format("lora_modules_to_save has {}, too: rows of tokens that are added are to learn", module));
  }
}

}  // namespace

std::vector<std::string> describe_vocabulary(RunConfig& config, const HfConfig& hf, const fs::path& directory) {
  std::vector<std::string> notes;
  RunConfig::Model& model = config.model;
  if (model.tokenizer_name_or_path.empty() && !model.adapter_name_or_path.empty()) {
    const fs::path folder = tokenizer_folder(directory, resolve_adapter_path(model.adapter_name_or_path));
    if (folder != directory) {
      model.tokenizer_name_or_path = folder.string();
      notes.push_back("the tokenizer is the adapter's, which has other tokens than the model's");
    }
  }
  const int64_t of_adapter = vocab_rows_of_adapter(resolve_adapter_path(model.adapter_name_or_path));
  model.vocab_rows = of_adapter;
  const std::string keys = stated_keys(model);
  if (keys.empty()) return notes;
  const int64_t own = read_decoder_config(hf).vocab_size;
  const NewTokens more = new_tokens(config);
  const fs::path folder = tokenizer_directory(config, directory);
  TokensOfRun tokens{own + static_cast<int64_t>(more.plain.size() + more.special.size()), more.plain, {}};
  tokens.added.insert(tokens.added.end(), more.special.begin(), more.special.end());
  if (!folder.empty() && fs::exists(folder / "tokenizer.json")) tokens = tokens_of(config, folder);
  if (of_adapter > own && tokens.rows > of_adapter) {
    throw UserError(fmt::format("the adapter to continue has rows for {} tokens, and with the added ones there are {}",
                                of_adapter, tokens.rows),
                    keys, "merge the adapter into its model (hone merge), and add the tokens to that one");
  }
  model.vocab_rows = std::max(of_adapter, tokens.rows);
  if (!tokens.known.empty()) {
    notes.push_back(fmt::format("{}: the tokenizer has '{}' already", keys, fmt::join(tokens.known, "', '")));
  }
  if (tokens.added.empty() && tokens.rows <= own) {
    notes.push_back(
        fmt::format("{}: no row is added, the model has {} and the tokenizer {} tokens", keys, own, tokens.rows));
    return notes;
  }
  if (!tokens.added.empty()) {
    notes.push_back(
        fmt::format("{}: {} new token{}{}", keys, tokens.added.size(), tokens.added.size() == 1 ? "" : "s",
                    tokens.rows <= own ? fmt::format(", for which the {} rows of the model suffice", own) : ""));
  }
  if (tokens.rows > std::max(own, of_adapter)) {
    notes.push_back(fmt::format("the embedding and the head have {} rows, {} more than the model: the mean of its own",
                                tokens.rows, tokens.rows - own));
  }
  train_rows(config, notes);
  return notes;
}

}  // namespace hone
