#include "train/plan/adapter_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/files/file_bytes.h"
#include "models/hf_config.h"
#include "models/registry.h"
#include "weights/adapter_folder.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "tokenizer.json";

bool have_same_tokens(const Tokenizer& a, const Tokenizer& b) {
  if (a.vocab_size() != b.vocab_size()) return false;
  for (int32_t id = 0; id < a.vocab_size(); ++id) {
    if (a.id_to_token(id) != b.id_to_token(id)) return false;
  }
  return true;
}

/// Nothing says which tokens the rows of an adapter belong to if it has more of them than its model.
void require_known_rows(const fs::path& model, const fs::path& adapter) {
  const int64_t of_adapter = vocab_rows_of_adapter(adapter);
  const int64_t of_model = of_adapter > 0 ? read_decoder_config(HfConfig::read(model)).vocab_size : 0;
  if (of_adapter <= of_model) return;
  throw UserError(fmt::format("the adapter has rows for a vocabulary of {} tokens and the model for {}, and the "
                              "adapter's folder has no tokenizer.json that says which tokens were added",
                              of_adapter, of_model),
                  adapter.string(), "copy the tokenizer it was trained with into that folder");
}

}  // namespace

fs::path tokenizer_folder(const fs::path& model, const fs::path& adapter) {
  if (adapter.empty() || !fs::exists(model / kFile)) return model;
  if (!fs::exists(adapter / kFile)) {
    require_known_rows(model, adapter);
    return model;
  }
  if (read_whole_file(adapter / kFile) == read_whole_file(model / kFile)) return model;
  return have_same_tokens(Tokenizer::load(adapter), Tokenizer::load(model)) ? model : adapter;
}

Tokenizer load_tokenizer_beside(const fs::path& model, const fs::path& folder, const NewTokens& more) {
  Tokenizer tokenizer = Tokenizer::load(folder, more);
  if (folder == model || !fs::exists(model / kFile)) return tokenizer;
  const Tokenizer of_model = Tokenizer::load(model);
  TokenChoice choice;
  for (const int32_t id : of_model.special_tokens().stop) {
    const std::optional<std::string> token = of_model.id_to_token(id);
    if (token && tokenizer.token_to_id(*token)) choice.eot.push_back(*token);
  }
  tokenizer.choose(choice);
  return tokenizer;
}

}  // namespace hone
