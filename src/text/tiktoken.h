// Vocabularies of tiktoken: tiktoken.model, as Moonshot's models (Kimi-K2, Moonlight) have it instead of
// tokenizer.json.
#pragma once

#include <filesystem>
#include <string>

namespace hone {

/// Whether Tokenizer::load() finds a tokenizer in the directory: tokenizer.json or tiktoken.model.
bool has_tokenizer(const std::filesystem::path& directory);

/// The tokenizer.json of a directory's tiktoken.model, whose lines are a token in base64 and its rank. Tokens merge as
/// in tiktoken: the pair of neighbours whose text is the token with the lowest rank, and a piece that is a token stays
/// whole. How text is split into pieces is in code beside the file, which is never run; it is known for the model_type
/// of config.json. The 256 ids after the ranks are special tokens, named by added_tokens_decoder in
/// tokenizer_config.json. UserError for other model types, and with file and line for what is malformed.
std::string tokenizer_json_of_tiktoken(const std::filesystem::path& directory);

}  // namespace hone
