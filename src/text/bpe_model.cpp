#include "text/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace hone {
namespace {

std::optional<std::string> optional_string(const JsonCursor& json, std::string_view key) {
  const auto found = json.find(key);
  return found ? std::optional(found->string()) : std::nullopt;
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
  // Old files name no type; only BPE has merges.
  const auto type = json.find("type");
  if (type && type->string() != "BPE")
    type->fail(fmt::format("tokenizer model '{}' is not supported", type->string()), "supported: BPE");
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
  ids_.reserve(vocab.value().size());
  for (const auto& [token, id] : vocab.value().items()) {
    if (!id.is_number_integer()) vocab.fail(fmt::format("the id of token '{}' is not an integer", token));
    if (id.get<double>() < 0 || id.get<double>() > kMaxTokenId)
      vocab.fail(fmt::format("the id {} of token '{}' is not between 0 and {}", id.dump(), token, kMaxTokenId));
    const int32_t index = id.get<int32_t>();
    const auto [entry, is_new] = ids_.emplace(token, index);
    if (size_t(index) >= tokens_.size()) tokens_.resize(size_t(index) + 1);
    if (tokens_[index])
      vocab.fail(fmt::format("tokens '{}' and '{}' both have the id {}", *tokens_[index], token, index));
    tokens_[index] = &entry->first;
  }
}

void BpeModel::read_merges(const JsonCursor& merges) {
  const size_t count = merges.array_size();
  merges_ = MergeTable(count);
  std::string merged;
  for (size_t rank = 0; rank < count; ++rank) {
    const auto [left, right] = merge_pair(merges.value()[rank]);
    if (left.empty() || right.empty())
      merges.element(rank).fail("expected a merge, [\"left\", \"right\"] or \"left right\"");
    merged.assign(left).append(right);
    for (const std::string_view token : {left, right, std::string_view(merged)})
      if (ids_.find(token) == ids_.end())
        merges.element(rank).fail(fmt::format("token '{}' is not in the vocabulary", token));
    merges_.set(ids_.find(left)->second, ids_.find(right)->second, {uint32_t(rank), ids_.find(merged)->second});
  }
}

void BpeModel::index_bytes() {
  for (int byte = 0; byte < 256; ++byte) {
    byte_symbols_[byte] = token_to_id(byte_character(uint8_t(byte))).value_or(-1);
    fallback_[byte] = token_to_id(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

std::optional<int32_t> BpeModel::token_to_id(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* BpeModel::id_to_token(int32_t id) const {
  return id >= 0 && size_t(id) < tokens_.size() ? tokens_[id] : nullptr;
}

std::optional<int32_t> BpeModel::whole_piece(std::string_view piece) const {
  if (!byte_level_) return token_to_id(piece);
  std::string token;
  for (const char byte : piece) token += byte_character(uint8_t(byte));
  return token_to_id(token);
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
  const auto unk = token_to_id(*unk_token_);
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
    const int32_t id = byte_level_ ? byte_symbols_[uint8_t(piece[begin])] : token_to_id(unit).value_or(-1);
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

void BpeModel::encode_piece(std::string_view piece, std::vector<Symbol>& out, MergeScratch& scratch) const {
  if (cache_->append(piece, out)) return;
  std::vector<Symbol>& symbols = scratch.symbols;
  symbols.clear();
  const auto whole = ignore_merges_ ? whole_piece(piece) : std::nullopt;
  if (whole) {
    symbols.push_back({*whole, 0, uint32_t(piece.size())});
  } else {
    initial_symbols(piece, symbols);
    merge_symbols(merges_, symbols, scratch);
  }
  cache_->remember(piece, symbols.data(), symbols.size());
  out.insert(out.end(), symbols.begin(), symbols.end());
}

}  // namespace hone
