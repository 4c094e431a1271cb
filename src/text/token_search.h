// Finds the strings of a set in a text, in a time linear in the length of the text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace hone {

// A set of strings with ids; finds those that start at a position of a text.

/// Immutable; the children of a node are contiguous, so a step touches one or two cache lines.
class TokenTrie {
 public:
  TokenTrie() = default;
  /// The last of equal strings is used; empty ones are ignored. Ids are not negative.
  explicit TokenTrie(std::vector<std::pair<std::string_view, int32_t>> tokens);

  bool empty() const { return nodes_.empty(); }

  /// Calls visit(end, id) for every string of the set that equals text[position, end), shortest first.
  template <class Visit>
  void for_each_at(std::string_view text, size_t position, Visit visit) const {
    if (nodes_.empty() || position >= text.size()) return;
    uint32_t node = roots_[uint8_t(text[position])];
    for (size_t end = position + 1; node != kNone; ++end) {
      if (nodes_[node].id >= 0) visit(end, nodes_[node].id);
      if (end == text.size()) break;
      node = child(node, text[end]);
    }
  }

 private:
  friend class TokenSearch;
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Node {
    int32_t id = -1;  // the string that ends here; -1: none
    uint32_t first_child = 0, children = 0;
  };

  uint32_t child(uint32_t node, char byte) const {
    const Node& parent = nodes_[node];
    for (uint32_t i = parent.first_child; i < parent.first_child + parent.children; ++i)
      if (labels_[i] == byte) return i;
    return kNone;
  }

  std::vector<Node> nodes_;
  std::vector<char> labels_;              // [nodes] the last byte of each node's string
  std::array<uint32_t, 256> roots_ = {};  // by first byte
};

/// Immutable. An Aho-Corasick automaton (1975) of the reversed strings, which reads the text backwards: at each
/// position it has the longest string that starts there, in constant time.
class TokenSearch {
 public:
  TokenSearch() = default;
  /// The last of equal strings is used; empty ones are ignored. Ids are not negative.
  explicit TokenSearch(const std::vector<std::pair<std::string_view, int32_t>>& tokens);

  bool empty() const { return trie_.empty(); }

  struct Match {
    uint32_t begin, length;
    int32_t id;
    uint32_t end() const { return begin + length; }
  };
  /// For each position where a string starts, the longest one, from left to right; matches may overlap.
  std::vector<Match> matches(std::string_view text) const;

 private:
  static constexpr uint32_t kStart = TokenTrie::kNone;

  uint32_t next(uint32_t state, char byte) const;

  TokenTrie trie_;
  // [nodes] the longest proper suffix of the node's string that is in the trie, or kStart
  std::vector<uint32_t> shorter_;
  struct Found {
    int32_t id = -1;
    uint32_t length = 0;
  };
  std::vector<Found> found_;  // [nodes] the longest string that is a suffix of the node's string
};

}  // namespace hone
