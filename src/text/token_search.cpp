#include "text/token_search.h"

#include <algorithm>
#include <string>

namespace hone {

TokenSearch::TokenSearch(const std::vector<std::pair<std::string_view, int32_t>>& tokens) {
  std::vector<std::string> backwards;
  backwards.reserve(tokens.size());
  std::vector<std::pair<std::string_view, int32_t>> reversed;
  for (const auto& [text, id] : tokens) reversed.emplace_back(backwards.emplace_back(text.rbegin(), text.rend()), id);
  trie_ = TokenTrie(std::move(reversed));
  shorter_.assign(trie_.nodes_.size(), kStart);
  found_.resize(trie_.nodes_.size());
  std::vector<uint32_t> depth(trie_.nodes_.size(), 1);
  // The nodes of a trie stand in order of their depth, so those that a node leads back to are done before it.
  for (uint32_t node = 0; node < trie_.nodes_.size(); ++node) {
    if (trie_.nodes_[node].id >= 0) {
      found_[node] = {trie_.nodes_[node].id, depth[node]};
    } else if (shorter_[node] != kStart) {
      found_[node] = found_[shorter_[node]];
    }
    const uint32_t begin = trie_.nodes_[node].first_child, end = begin + trie_.nodes_[node].children;
    for (uint32_t child = begin; child < end; ++child) {
      shorter_[child] = next(shorter_[node], trie_.labels_[child]);
      depth[child] = depth[node] + 1;
    }
  }
}

uint32_t TokenSearch::next(uint32_t state, char byte) const {
  while (state != kStart) {
    const uint32_t child = trie_.child(state, byte);
    if (child != kStart) return child;
    state = shorter_[state];
  }
  return trie_.roots_[uint8_t(byte)];
}

std::vector<TokenSearch::Match> TokenSearch::matches(std::string_view text) const {
  std::vector<Match> matches;
  if (empty()) return matches;
  uint32_t state = kStart;
  for (size_t position = text.size(); position-- > 0;) {
    state = next(state, text[position]);
    if (state != kStart && found_[state].id >= 0)
      matches.push_back({uint32_t(position), found_[state].length, found_[state].id});
  }
  std::reverse(matches.begin(), matches.end());
  return matches;
}

}  // namespace hone
