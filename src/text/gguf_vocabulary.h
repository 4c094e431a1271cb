// The tokenizer of a GGUF file, and tokenizer.json, in both directions.
//
// GGUF names the pre-tokenizer (tokenizer.ggml.pre) instead of stating its patterns: pre_tokenizer_rows() is the table
// of those that are the same in both. Two models are known: "gpt2", byte-level BPE with merges, and "llama",
// SentencePiece's BPE with scores. llama.cpp does not normalise text (NFC), and matches added tokens without the spaces
// around them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/text/json_value.h"

namespace hone {

/// The keys tokenizer.ggml.* and tokenizer.chat_template of a file.
struct GgufVocabulary {
  /// tokenizer.ggml.token_type.
  enum Type : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

  std::string model;  ///< "gpt2", "llama"
  std::string pre;    ///< the pre-tokenizer, with "gpt2"
  std::vector<std::string> tokens;
  std::vector<int64_t> types;
  std::vector<double> scores;       ///< with "llama"
  std::vector<std::string> merges;  ///< with "gpt2": two tokens and a space between them
  std::optional<int64_t> bos = {}, eos = {}, pad = {}, unk = {}, eot = {};
  std::optional<bool> add_bos = {}, add_eos = {};
  std::optional<bool> add_space_prefix = {};  ///< with "llama"; absent: true
  std::string chat_template = {};             ///< "": none
};

/// The vocabulary of a folder's tokenizer.json and the files beside it, for an embedding of `rows` rows: rows without a
/// token are "[PADn]", of type kUnused. UserError for a tokenizer that a file cannot say, such as one with patterns
/// that are not in the table. `notes` receives sentences about what llama.cpp does differently.
GgufVocabulary gguf_vocabulary(const std::filesystem::path& folder, int64_t rows, std::vector<std::string>& notes);

/// Files of a tokenizer.
struct TokenizerFiles {
  JsonValue tokenizer, config, generation;  ///< tokenizer.json, tokenizer_config.json, generation_config.json
  std::string chat_template;                ///< chat_template.jinja; "": none
};

/// `file`: for messages. UserError for a model or a pre-tokenizer that is not known, and for lists that do not belong
/// together. `context_length`: of the model.
TokenizerFiles tokenizer_of_gguf(const GgufVocabulary& vocabulary, int64_t context_length, const std::string& file);

}  // namespace hone
