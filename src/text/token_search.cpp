#include "text/token_search.h"

#include <algorithm>
#include <string>

namespace hone {
namespace {

/// Tokens [begin, end) of the sorted list share their first `depth` bytes, which are the string of `node`.
struct Branch {
  uint32_t node;
  size_t begin, end, depth;
};

}  // namespace

TokenTrie::TokenTrie(std::vector<std::pair<std::string_view, int32_t>> tokens) {
  roots_.fill(kNone);
  std::stable_sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::erase_if(tokens, [](const auto& token) { return token.first.empty(); });
  if (tokens.empty()) return;
  // Breadth first, so the children of a node are added together.
  std::vector<Branch> branches;
  const auto add_children = [&](size_t begin, size_t end, size_t depth) {
    for (size_t from = begin; from < end;) {
      const char byte = tokens[from].first[depth];
      size_t to = from;
      while (to < end && tokens[to].first[depth] == byte) ++to;
      const auto node = static_cast<uint32_t>(nodes_.size());
      if (depth == 0) roots_[uint8_t(byte)] = node;
      nodes_.emplace_back();
      labels_.push_back(byte);
      branches.push_back({node, from, to, depth + 1});
      from = to;
    }
  };
  add_children(0, tokens.size(), 0);
  for (size_t i = 0; i < branches.size(); ++i) {
    Branch branch = branches[i];
    for (; branch.begin < branch.end && tokens[branch.begin].first.size() == branch.depth; ++branch.begin)
      nodes_[branch.node].id = tokens[branch.begin].second;
    nodes_[branch.node].first_child = static_cast<uint32_t>(nodes_.size());
    add_children(branch.begin, branch.end, branch.depth);
    nodes_[branch.node].children = static_cast<uint32_t>(nodes_.size()) - nodes_[branch.node].first_child;
  }
}

TokenSearch::TokenSearch(const std::vector<std::pair<std::string_view, int32_t>>& tokens) {
  std::vector<std::string> backwards;
  backwards.reserve(tokens.size());
  std::vector<std::pair<std::string_view, int32_t>> reversed;
  for (const auto& [text, id] : tokens) reversed.emplace_back(backwards.emplace_back(text.rbegin(), text.rend()), id);
  trie_ = TokenTrie(std::move(reversed));
  shorter_.assign(trie_.nodes_.size(), kStart);
  found_.resize(trie_.nodes_.size());
  std::vector<uint32_t> depth(trie_.nodes_.size(), 1);
  // The nodes of a trie are sorted by depth, so the node of a suffix is complete before the nodes that refer to it.
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
