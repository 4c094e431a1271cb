#include "text/token_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/token_search.h"
#include "text/utf8.h"

namespace hone {

// Byte pair encoding: vocabulary and merges.

/// Byte pair encoding (Sennrich et al. 2016) over the byte-level alphabet or over characters with byte fallback.
class BpeModel : public TokenModel {
 public:
  /// `byte_level`: the vocabulary is written in the byte-level alphabet and pieces are raw bytes.
  BpeModel(const JsonCursor& json, bool byte_level);

  void encode_piece(std::string_view piece, std::vector<Symbol>& out, EncodeScratch& scratch) const override;

 protected:
  void encode_new_piece(std::string_view piece, EncodeScratch& scratch) const override;

 private:
  void read_options(const JsonCursor& json);
  void read_vocabulary(const JsonCursor& vocab);
  void read_merges(const JsonCursor& merges);
  void index_bytes();
  void append_unknown(std::string_view unit, uint32_t begin, uint32_t end, std::vector<Symbol>& symbols,
                      std::optional<Symbol>& pending) const;
  void initial_symbols(std::string_view piece, std::vector<Symbol>& symbols) const;
  std::optional<int32_t> whole_piece(std::string_view piece) const;

  bool byte_level_, ignore_merges_ = false, byte_fallback_ = false, fuse_unk_ = false;
  std::string where_;
  std::optional<std::string> unk_token_;
  std::array<int32_t, 256> byte_symbols_;  // byte level: token of each byte; -1: none
  std::array<int32_t, 256> fallback_;
  MergeTable merges_;
  /// Whether no merge joins a space mark to the text before it, so words merge separately (SentencePiece's
  /// vocabularies).
  bool words_merge_apart_ = false;
};

namespace {

std::optional<std::string> optional_string(const JsonCursor& json, std::string_view key) {
  const auto found = json.find(key);
  return found ? std::optional(found->string()) : std::nullopt;
}

/// SentencePiece's mark for a space.
constexpr std::string_view kSpaceMark = "\u2581";

/// Whether `token` has a space mark after another character.
bool has_inner_mark(std::string_view token) {
  while (token.starts_with(kSpaceMark)) token.remove_prefix(kSpaceMark.size());
  return token.find(kSpaceMark) != token.npos;
}

/// Reads a merge: ["left", "right"] or, in older files, "left right".
std::pair<std::string_view, std::string_view> merge_pair(const IndexedJson& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  if (!merge.is_string()) return {};
  const std::string_view text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == text.npos || text.find(' ', space + 1) != text.npos) return {};
  return {text.substr(0, space), text.substr(space + 1)};
}

}  // namespace

BpeModel::BpeModel(const JsonCursor& json, bool byte_level) : byte_level_(byte_level), where_(json.where()) {
  read_options(json);
  read_vocabulary(json.at("vocab"));
  read_merges(json.at("merges"));
  index_bytes();
}

void BpeModel::read_options(const JsonCursor& json) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = json.find(key);
    if (affix && !affix->string().empty()) affix->fail(fmt::format("a {} is not supported", key));
  }
  if (const auto dropout = json.find("dropout")) {
    if (!dropout->value().is_number() || dropout->value().get<double>() != 0.0)
      dropout->fail("BPE dropout is not supported", "set model.dropout to null");
  }
  ignore_merges_ = json.boolean_or("ignore_merges", false);
  byte_fallback_ = json.boolean_or("byte_fallback", false);
  fuse_unk_ = json.boolean_or("fuse_unk", false);
  unk_token_ = optional_string(json, "unk_token");
}

void BpeModel::read_vocabulary(const JsonCursor& vocab) {
  vocab.expect_object();
  vocabulary_.reserve(vocab.value().size());
  for (const auto& [token, id] : vocab.value().items()) {
    if (!id.is_number_integer()) vocab.fail(fmt::format("the id of token '{}' is not an integer", token));
    if (id.get<double>() < 0 || id.get<double>() > kMaxTokenId)
      vocab.fail(fmt::format("the id {} of token '{}' is not between 0 and {}", id.dump(), token, kMaxTokenId));
    const int32_t index = id.get<int32_t>();
    if (const std::string* other = vocabulary_.add(token, index))
      vocab.fail(fmt::format("tokens '{}' and '{}' both have the id {}", *other, token, index));
  }
}

void BpeModel::read_merges(const JsonCursor& merges) {
  const size_t count = merges.array_size();
  merges_ = MergeTable(count);
  words_merge_apart_ = !byte_level_ && !ignore_merges_ && vocabulary_.id_of(kSpaceMark);
  std::string merged;
  for (size_t rank = 0; rank < count; ++rank) {
    const auto [left, right] = merge_pair(merges.value()[rank]);
    if (left.empty() || right.empty())
      merges.element(rank).fail("expected a merge, [\"left\", \"right\"] or \"left right\"");
    merged.assign(left).append(right);
    words_merge_apart_ = words_merge_apart_ && !has_inner_mark(merged);
    const auto id_of = [&](std::string_view token) {
      const auto id = vocabulary_.id_of(token);
      if (!id) merges.element(rank).fail(fmt::format("token '{}' is not in the vocabulary", token));
      return *id;
    };
    const int32_t left_id = id_of(left), right_id = id_of(right);
    merges_.set(left_id, right_id, {uint32_t(rank), id_of(merged)});
  }
}

void BpeModel::index_bytes() {
  for (int byte = 0; byte < 256; ++byte)
    byte_symbols_[byte] = vocabulary_.id_of(byte_character(uint8_t(byte))).value_or(-1);
  fallback_ = byte_fallback_ids(vocabulary_);
}

std::optional<int32_t> BpeModel::whole_piece(std::string_view piece) const {
  if (!byte_level_) return vocabulary_.id_of(piece);
  std::string token;
  for (const char byte : piece) token += byte_character(uint8_t(byte));
  return vocabulary_.id_of(token);
}

/// Appends a character without a token: its bytes as "<0xNN>" if the vocabulary has them all, else the unknown token
/// (with fuse_unk one for adjacent characters), else nothing.
void BpeModel::append_unknown(std::string_view unit, uint32_t begin, uint32_t end, std::vector<Symbol>& symbols,
                              std::optional<Symbol>& pending) const {
  const auto known = [&](char byte) { return fallback_[uint8_t(byte)] >= 0; };
  if (byte_fallback_ && std::all_of(unit.begin(), unit.end(), known)) {
    // In the byte-level alphabet a unit may have more bytes than its text.
    for (uint32_t i = 0; i < unit.size(); ++i)
      symbols.push_back({fallback_[uint8_t(unit[i])], std::min(begin + i, end), std::min(begin + i + 1, end)});
    return;
  }
  if (!unk_token_) return;
  const auto unk = vocabulary_.id_of(*unk_token_);
  if (!unk) throw UserError(fmt::format("the unknown token '{}' is not in the vocabulary", *unk_token_), where_);
  if (pending && fuse_unk_) {
    pending->end = end;
    return;
  }
  if (pending) symbols.push_back(*pending);
  pending = Symbol{*unk, begin, end};
}

void BpeModel::initial_symbols(std::string_view piece, std::vector<Symbol>& symbols) const {
  if (byte_level_) symbols.reserve(piece.size());
  std::optional<Symbol> pending;  // an unknown token that the next character may extend
  for (uint32_t begin = 0; begin < piece.size();) {
    const uint32_t end = begin + (byte_level_ ? 1 : utf8_step(piece, begin).length);
    const std::string_view unit =
        byte_level_ ? std::string_view(byte_character(uint8_t(piece[begin]))) : piece.substr(begin, end - begin);
    const int32_t id = byte_level_ ? byte_symbols_[uint8_t(piece[begin])] : vocabulary_.id_of(unit).value_or(-1);
    if (id < 0) {
      append_unknown(unit, begin, end, symbols, pending);
    } else {
      if (pending) symbols.push_back(*pending);
      pending.reset();
      symbols.push_back({id, begin, end});
    }
    begin = end;
  }
  if (pending) symbols.push_back(*pending);
}

void BpeModel::encode_piece(std::string_view piece, std::vector<Symbol>& out, EncodeScratch& scratch) const {
  for (size_t begin = 0; words_merge_apart_ && begin < piece.size();) {
    size_t end = begin;
    while (piece.substr(end).starts_with(kSpaceMark)) end += kSpaceMark.size();
    end = std::min(piece.find(kSpaceMark, end), piece.size());
    const size_t first = out.size();
    TokenModel::encode_piece(piece.substr(begin, end - begin), out, scratch);
    for (size_t i = first; i < out.size(); ++i) {
      out[i].begin += uint32_t(begin);
      out[i].end += uint32_t(begin);
    }
    begin = end;
  }
  if (!words_merge_apart_) TokenModel::encode_piece(piece, out, scratch);
}

void BpeModel::encode_new_piece(std::string_view piece, EncodeScratch& scratch) const {
  if (const auto whole = ignore_merges_ ? whole_piece(piece) : std::nullopt) {
    scratch.new_symbols.push_back({*whole, 0, uint32_t(piece.size())});
    return;
  }
  initial_symbols(piece, scratch.new_symbols);
  merge_symbols(merges_, scratch.new_symbols, scratch.merge);
}

// Unigram language model tokenization (Kudo 2018), as trained by SentencePiece.

/// Encodes a piece as the tokens with the largest sum of scores (log probabilities); of equal sums, the path that a
/// front-to-back search finds first, as in Hugging Face tokenizers.
class UnigramModel : public TokenModel {
 public:
  /// Reads `vocab` ([[token, score], …]; the index is the id), `unk_id` and `byte_fallback`.
  explicit UnigramModel(const JsonCursor& json);

 protected:
  /// Each character without a token costs 10 more than the worst token. Adjacent ones become one unknown token, or
  /// their bytes with byte_fallback. Throws UserError if there is no unknown token.
  void encode_new_piece(std::string_view piece, EncodeScratch& scratch) const override;

 private:
  void read_vocabulary(const JsonCursor& vocab);
  void find_best_path(std::string_view piece, std::vector<UnigramStep>& steps) const;
  void append_text(std::string_view piece, uint32_t begin, uint32_t end, std::vector<Symbol>& symbols) const;

  std::string where_;
  std::vector<double> scores_;
  int32_t unk_id_ = -1;  // -1: none
  double unk_score_ = 0;
  bool byte_fallback_ = false;
  std::array<int32_t, 256> fallback_{};
  TokenTrie trie_;
};

namespace {

constexpr double kUnknownPenalty = 10.0;
constexpr size_t kLongestToken = 512;                 // bytes; SentencePiece's default limit is 16 characters per token
constexpr size_t kMostTokenBytes = size_t{32} << 20;  // all tokens together

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
    if (token.size() > kLongestToken || bytes > kMostTokenBytes)
      vocab.element(i).fail(
          fmt::format("a token has at most {} bytes, all together {}", kLongestToken, kMostTokenBytes));
    vocabulary_.add(token, int32_t(i));
    tokens.emplace_back(token, int32_t(i));  // the last of equal tokens is used, in the vocabulary and in the trie
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
                        "set model.unk_id");
      offer(begin, next, unk_id_, unk_score_ + till_here);
    }
    begin = next;
  }
}

/// Appends a section: its token, else its bytes, else the unknown token.
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
  // From back to front: the symbol of each step; adjacent unknown symbols become one symbol with the id -1.
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

const std::string* Vocabulary::add(std::string_view token, int32_t id) {
  auto found = ids_.find(token);
  if (found == ids_.end()) found = ids_.emplace(token, id).first;
  found->second = id;
  if (size_t(id) >= tokens_.size()) tokens_.resize(size_t(id) + 1);
  const std::string* before = std::exchange(tokens_[size_t(id)], &found->first);
  ++size_;
  return before;
}

std::optional<int32_t> Vocabulary::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::array<int32_t, 256> byte_fallback_ids(const Vocabulary& vocabulary) {
  std::array<int32_t, 256> ids;
  for (int byte = 0; byte < 256; ++byte)
    ids[size_t(byte)] = vocabulary.id_of(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  return ids;
}

void EncodeScratch::forget_long_pieces() {
  constexpr size_t kMostKept = size_t{1} << 16;  // elements
  const auto forget = [](auto&... memory) {
    ((memory.capacity() > kMostKept ? std::decay_t<decltype(memory)>().swap(memory) : void()), ...);
  };
  forget(symbols, new_symbols, merge.merges, merge.previous, merge.next, merge.heap, steps);
}

ScratchPool::Lease ScratchPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return {*this, std::make_unique<EncodeScratch>()};
  std::unique_ptr<EncodeScratch> scratch = std::move(free_.back());
  free_.pop_back();
  return {*this, std::move(scratch)};
}

void ScratchPool::give_back(std::unique_ptr<EncodeScratch> scratch) {
  scratch->forget_long_pieces();
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(scratch));
}

void TokenModel::encode_piece(std::string_view piece, std::vector<Symbol>& out, EncodeScratch& scratch) const {
  if (scratch.cache.append(piece, out)) return;
  scratch.new_symbols.clear();
  encode_new_piece(piece, scratch);
  scratch.cache.remember(piece, scratch.new_symbols);
  if (out.empty()) {
    out.swap(scratch.new_symbols);
  } else {
    out.insert(out.end(), scratch.new_symbols.begin(), scratch.new_symbols.end());
  }
}

std::unique_ptr<TokenModel> make_token_model(const JsonCursor& json, bool byte_level) {
  const auto type = json.find("type");
  if (!type || type->string() == "BPE") return std::make_unique<BpeModel>(json, byte_level);  // old files have no type
  if (type->string() == "Unigram") return std::make_unique<UnigramModel>(json);
  type->fail(fmt::format("tokenizer model '{}' is not supported", type->string()),
             "supported: BPE and Unigram, which language models use; WordPiece and WordLevel belong to encoders");
}

}  // namespace hone
