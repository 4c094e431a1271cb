// Vocabularies of tiktoken: tiktoken.model, as Moonshot's models (Kimi-K2, Moonlight) have it instead of
// tokenizer.json.
#pragma once

#include <filesystem>
#include <string>

namespace hone {

/// How Moonshot's models split text: runs of Han characters, words without them and their English contractions,
/// numbers of up to 3 digits, punctuation, line ends, spaces. Its intersections of classes are written as lookaheads.
inline constexpr const char* kMoonshotPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Whether Tokenizer::load() finds a tokenizer in the directory: tokenizer.json or tiktoken.model.
bool has_tokenizer(const std::filesystem::path& directory);

/// The tokenizer.json of a directory's tiktoken.model, whose lines are a token in base64 and its rank. Tokens merge as
/// in tiktoken: the pair of neighbours whose text is the token with the lowest rank, and a piece that is a token stays
/// whole. How text is split into pieces is in code beside the file, which is never run; it is known for the model_type
/// of config.json. The 256 ids after the ranks are special tokens, named by added_tokens_decoder in
/// tokenizer_config.json. UserError for other model types, and with file and line for what is malformed.
std::string tokenizer_json_of_tiktoken(const std::filesystem::path& directory);

}  // namespace hone
