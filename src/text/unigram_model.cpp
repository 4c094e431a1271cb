#include "text/unigram_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "text/utf8.h"

namespace hone {
namespace {

constexpr double kUnknownPenalty = 10.0;
constexpr size_t kLongestToken = 512;  // bytes; SentencePiece makes tokens of 16 characters unless told otherwise
constexpr size_t kMostBytes = size_t{32} << 20;  // of all tokens

}  // namespace

UnigramModel::UnigramModel(const JsonCursor& json) : where_(json.where()) {
  byte_fallback_ = json.boolean_or("byte_fallback", false);
  read_vocabulary(json.at("vocab"));
  if (const auto unk = json.find("unk_id")) {
    if (scores_.empty()) unk->fail("the vocabulary is empty");
    unk_id_ = int32_t(unk->integer(0, int64_t(scores_.size()) - 1));
  }
  const double worst = scores_.empty() ? 0 : *std::min_element(scores_.begin(), scores_.end());
  unk_score_ = worst - kUnknownPenalty;
  fallback_ = byte_fallback_ids(vocabulary_);
}

void UnigramModel::read_vocabulary(const JsonCursor& vocab) {
  const size_t count = vocab.array_size();
  if (count > size_t(kMaxTokenId)) vocab.fail(fmt::format("{} tokens are more than {}", count, kMaxTokenId));
  vocabulary_.reserve(count);
  std::vector<std::pair<std::string_view, int32_t>> tokens;
  tokens.reserve(count);
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const IndexedJson& entry = vocab.value()[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      vocab.element(i).fail("expected [token, score]");
    const auto& token = entry[0].get_ref<const std::string&>();
    bytes += token.size();
    if (token.size() > kLongestToken || bytes > kMostBytes)
      vocab.element(i).fail(fmt::format("a token has at most {} bytes, all together {}", kLongestToken, kMostBytes));
    vocabulary_.add(token, int32_t(i));
    tokens.emplace_back(token, int32_t(i));  // of equal ones the last counts, in the vocabulary as in the trie
    scores_.push_back(entry[1].get<double>());
  }
  trie_ = TokenTrie(std::move(tokens));
}

void UnigramModel::find_best_path(std::string_view piece, std::vector<UnigramStep>& steps) const {
  steps.assign(piece.size() + 1, {});
  const auto offer = [&](size_t begin, size_t end, int32_t id, double score) {
    UnigramStep& step = steps[end];
    if (step.id < 0 || score > step.score) step = {score, id, uint32_t(begin)};
  };
  for (size_t begin = 0; begin < piece.size();) {
    const double till_here = steps[begin].score;
    const size_t next = begin + utf8_step(piece, begin).length;
    bool has_character = false;
    trie_.for_each_at(piece, begin, [&](size_t end, int32_t id) {
      offer(begin, end, id, scores_[size_t(id)] + till_here);
      has_character = has_character || end == next;
    });
    if (!has_character) {
      if (unk_id_ < 0)
        throw UserError("the text has a character that is not a token, and the model has no unknown token", where_,
                        "state model.unk_id");
      offer(begin, next, unk_id_, unk_score_ + till_here);
    }
    begin = next;
  }
}

/// A stretch that is a token, or else bytes, or else the unknown token.
void UnigramModel::append_text(std::string_view piece, uint32_t begin, uint32_t end,
                               std::vector<Symbol>& symbols) const {
  const std::string_view text = piece.substr(begin, end - begin);
  if (const auto id = vocabulary_.id_of(text)) {
    symbols.push_back({*id, begin, end});
    return;
  }
  const auto known = [&](char byte) { return fallback_[uint8_t(byte)] >= 0; };
  if (byte_fallback_ && std::all_of(text.begin(), text.end(), known)) {
    for (uint32_t i = begin; i < end; ++i) symbols.push_back({fallback_[uint8_t(piece[i])], i, i + 1});
  } else {
    symbols.push_back({unk_id_, begin, end});
  }
}

void UnigramModel::encode_new_piece(std::string_view piece, EncodeScratch& scratch) const {
  find_best_path(piece, scratch.steps);
  // From back to front: each step's symbol, unknown neighbours as one stretch of the id -1.
  std::vector<Symbol>& symbols = scratch.new_symbols;
  for (uint32_t end = uint32_t(piece.size()); end > 0; end = scratch.steps[end].begin) {
    const UnigramStep& step = scratch.steps[end];
    const bool unknown = step.id == unk_id_;
    if (unknown && !symbols.empty() && symbols.back().id < 0) {
      symbols.back().begin = step.begin;
    } else {
      symbols.push_back({unknown ? -1 : step.id, step.begin, end});
    }
  }
  std::reverse(symbols.begin(), symbols.end());
  if (std::none_of(symbols.begin(), symbols.end(), [](const Symbol& symbol) { return symbol.id < 0; })) return;
  const std::vector<Symbol> stretches = std::exchange(symbols, {});
  for (const Symbol& symbol : stretches) {
    if (symbol.id >= 0) {
      symbols.push_back(symbol);
    } else {
      append_text(piece, symbol.begin, symbol.end, symbols);
    }
  }
}

}  // namespace hone
