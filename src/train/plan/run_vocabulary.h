// The vocabulary of a run: the tokenizer it uses, the tokens that it adds, and the rows that the embedding and the head
// get for them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "models/hf_config.h"

namespace hone {

/// Completes `config` for the model of `directory`, which has the configuration `model`:
/// - tokenizer_name_or_path, if it is not stated and the adapter to continue has a tokenizer of its own;
/// - vocab_rows, what tokens of add_tokens, add_special_tokens, a tokenizer with resize_vocab, and the adapter need;
/// - lora.modules_to_save: rows for new tokens are trained, with adapters the embedding and the head whole.
/// Returns what to tell the user. Where there is no tokenizer.json, each token is counted as a new one: a run refuses
/// that when it loads the tokenizer. UserError for tokens whose ids others have, and for an adapter to continue that
/// has no rows for them.
std::vector<std::string> describe_vocabulary(RunConfig& config, const HfConfig& model,
                                             const std::filesystem::path& directory);

}  // namespace hone
