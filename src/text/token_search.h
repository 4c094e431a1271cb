// Finds the strings of a set in a text, in a time that grows with the text alone.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "text/token_trie.h"

namespace hone {

/// Immutable. An automaton (Aho and Corasick 1975) of the strings written backwards, which reads the text backwards: at
/// each position it knows the longest string that begins there, however long the strings are.
class TokenSearch {
 public:
  TokenSearch() = default;
  /// Of equal strings the last one counts; empty ones are left out. Ids are not negative.
  explicit TokenSearch(const std::vector<std::pair<std::string_view, int32_t>>& tokens);

  bool empty() const { return trie_.empty(); }

  struct Match {
    uint32_t begin, length;
    int32_t id;
    uint32_t end() const { return begin + length; }
  };
  /// For each position where a string begins the longest one, from left to right; they may overlap.
  std::vector<Match> matches(std::string_view text) const;

 private:
  static constexpr uint32_t kStart = TokenTrie::kNone;

  uint32_t next(uint32_t state, char byte) const;

  TokenTrie trie_;
  std::vector<uint32_t> shorter_;  // [nodes] the longest proper end of the node's string that is in the trie, or kStart
  struct Found {
    int32_t id = -1;
    uint32_t length = 0;
  };
  std::vector<Found> found_;  // [nodes] the longest string that the node's string ends with
};

}  // namespace hone
