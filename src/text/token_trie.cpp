#include "text/token_trie.h"

#include <algorithm>

namespace hone {

namespace {

/// Tokens [begin, end) of the sorted list share their first `depth` bytes, which lead to `node`.
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
  // Breadth first, so that the children of a node are added together.
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

}  // namespace hone
