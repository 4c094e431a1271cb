#include "text/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace hone {
namespace {

std::optional<std::string> optional_string(const JsonCursor& json, std::string_view key) {
  const auto found = json.find(key);
  return found ? std::optional(found->string()) : std::nullopt;
}

/// SentencePiece's mark for a space.
constexpr std::string_view kSpaceMark = "\u2581";

/// Whether `token` has a space mark behind anything else.
bool has_inner_mark(std::string_view token) {
  while (token.starts_with(kSpaceMark)) token.remove_prefix(kSpaceMark.size());
  return token.find(kSpaceMark) != token.npos;
}

/// A merge as ["left", "right"] or, in older files, "left right".
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

/// A character that is no token: its bytes as "<0xNN>" if the vocabulary has them all, else the unknown token (fused
/// with the one before when asked), else nothing.
void BpeModel::append_unknown(std::string_view unit, uint32_t begin, uint32_t end, std::vector<Symbol>& symbols,
                              std::optional<Symbol>& pending) const {
  const auto known = [&](char byte) { return fallback_[uint8_t(byte)] >= 0; };
  if (byte_fallback_ && std::all_of(unit.begin(), unit.end(), known)) {
    // In the byte-level alphabet a unit may have more bytes than the text it stands for.
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
  std::optional<Symbol> pending;  // an unknown token that the next one may extend
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

}  // namespace hone
