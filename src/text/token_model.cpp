#include "text/token_model.h"

#include <fmt/format.h>

#include "text/bpe_model.h"
#include "text/unigram_model.h"

namespace hone {

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

ScratchPool::Lease ScratchPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return {*this, std::make_unique<EncodeScratch>()};
  std::unique_ptr<EncodeScratch> scratch = std::move(free_.back());
  free_.pop_back();
  return {*this, std::move(scratch)};
}

void ScratchPool::give_back(std::unique_ptr<EncodeScratch> scratch) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(scratch));
}

void TokenModel::encode_piece(std::string_view piece, std::vector<Symbol>& out, EncodeScratch& scratch) const {
  if (scratch.cache.append(piece, out)) return;
  scratch.new_symbols.clear();
  encode_new_piece(piece, scratch);
  scratch.cache.remember(piece, scratch.new_symbols);
  out.insert(out.end(), scratch.new_symbols.begin(), scratch.new_symbols.end());
}

std::unique_ptr<TokenModel> make_token_model(const JsonCursor& json, bool byte_level) {
  const auto type = json.find("type");
  if (!type || type->string() == "BPE") return std::make_unique<BpeModel>(json, byte_level);  // old files name no type
  if (type->string() == "Unigram") return std::make_unique<UnigramModel>(json);
  type->fail(fmt::format("tokenizer model '{}' is not supported", type->string()),
             "supported: BPE and Unigram, which language models use; WordPiece and WordLevel belong to encoders");
}

}  // namespace hone
