// BlockBuilder: collects encoded rows into a TokenBlock, cut, split or dropped as the policy for long samples says.
#pragma once

#include <memory>
#include <string>

#include "data/chat_encoder.h"
#include "data/token_block.h"

namespace hone {

/// What to do with a sample longer than max_length.
enum class Overlength { kDrop, kTruncateLeft, kTruncateRight, kSplit, kError };

class BlockBuilder {
 public:
  /// `history_rewrites`: how the rows were encoded.
  BlockBuilder(int64_t max_length, Overlength overlength, HistoryRewrites history_rewrites = HistoryRewrites::kExpand);
  ~BlockBuilder();

  /// Adds a row: its samples, and what is worth telling about it. Samples with nothing to learn are dropped and
  /// counted. Throws UserError at `where` (file:line) for a sample that is too long under kError.
  void add(const EncodedRow& row, const std::string& where);

  int64_t tokens() const;
  int64_t rows() const;

  /// The block of all rows since the last one; the builder is empty then.
  TokenBlock take();

 private:
  struct Arrays;

  void append(const EncodedRow& row, const Sample& sample, int64_t begin, int64_t count);
  void add_sample(const EncodedRow& row, const Sample& sample, const std::string& where);

  int64_t max_length_;
  Overlength overlength_;
  HistoryRewrites history_rewrites_;
  std::shared_ptr<Arrays> arrays_;
  RowsReport report_;
};

/// A block's digest: what TokenBlock::digest holds.
uint64_t digest_of(const TokenBlock& block);

}  // namespace hone
