// The "added_tokens" of tokenizer.json: tokens found in the text before anything else happens to it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/aligned_text.h"
#include "text/bpe_model.h"
#include "text/normalizer.h"

namespace hone {

struct AddedToken {
  std::string content;
  std::string pattern;  // what is searched and decoded: the content, normalised if `normalized`
  int32_t id = 0;
  bool special = false;      // left out by decoding that skips special tokens
  bool normalized = false;   // searched in the normalised text, in normalised form
  bool single_word = false;  // found only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
};

/// A set of strings that finds the longest one at a position.
class TokenTrie {
 public:
  TokenTrie() : nodes_(1) {}

  void insert(std::string_view text, int32_t id);
  bool empty() const { return nodes_.size() == 1; }

  struct Match {
    size_t begin, end;
    int32_t id;
  };
  /// The leftmost match at or after `from`, of those the longest.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Node {
    std::unordered_map<char, uint32_t> children;
    int32_t id = -1;  // of the string that ends here; -1: none
  };

  std::optional<Match> longest_at(std::string_view text, size_t position) const;

  std::vector<Node> nodes_;
  std::array<bool, 256> first_bytes_{};
};

/// A stretch of text: an added token, or text between them.
struct TextSection {
  ByteRange range;
  std::optional<int32_t> token;
};

class AddedTokens {
 public:
  /// Reads the array `json` (none when absent). Ids follow Hugging Face tokenizers, which does not use those in the
  /// file: a content of the vocabulary has its id there, the others are numbered from the vocabulary's size in file
  /// order. Of entries with the same content the last one counts.
  AddedTokens(const std::optional<JsonCursor>& json, const BpeModel& model, const Normalizer* normalizer);

  /// Cuts original text at the tokens that are not normalised; sections cover the text, none is empty.
  std::vector<TextSection> split_original(std::string_view text) const { return split(text, original_); }
  /// Cuts normalised text at the normalised tokens.
  std::vector<TextSection> split_normalized(std::string_view text) const { return split(text, normalized_); }
  bool has_normalized() const { return !normalized_.empty(); }

  const AddedToken* find(int32_t id) const;
  const AddedToken* find(std::string_view content) const;
  bool is_special(std::string_view content) const { return special_.contains(content); }
  /// Largest id of an added token, -1 when there is none.
  int32_t max_id() const { return max_id_; }
  const std::unordered_map<int32_t, AddedToken>& by_id() const { return by_id_; }

 private:
  std::vector<TextSection> split(std::string_view text, const TokenTrie& trie) const;

  std::unordered_map<int32_t, AddedToken> by_id_;
  TokenIds ids_, special_;
  TokenTrie original_, normalized_;
  int32_t max_id_ = -1;
};

}  // namespace hone
