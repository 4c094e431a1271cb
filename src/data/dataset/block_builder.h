// BlockBuilder: collects encoded rows into a TokenBlock; truncates, splits or drops long samples by the overlength
// policy.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "core/base/named_choice.h"
#include "data/formats/chat_encoder.h"
#include "data/formats/token_block.h"

namespace hone {

/// The policy for a sample longer than max_length.
enum class Overlength { kDrop, kTruncateLeft, kTruncateRight, kSplit, kError };

template <>
inline constexpr auto kChoiceNames<Overlength> =
    std::to_array<ChoiceName<Overlength>>({{Overlength::kDrop, "drop"},
                                           {Overlength::kTruncateLeft, "truncate_left"},
                                           {Overlength::kTruncateRight, "truncate_right"},
                                           {Overlength::kSplit, "split"},
                                           {Overlength::kError, "error"}});

class BlockBuilder {
 public:
  /// `history_rewrites`: the policy that the rows were encoded with.
  BlockBuilder(int64_t max_length, Overlength overlength, HistoryRewrites history_rewrites = HistoryRewrites::kExpand);
  ~BlockBuilder();

  /// Adds the samples of a row and its notices to the report. Drops and counts samples without supervised tokens.
  /// Throws UserError at `where` (file:line) for a sample that is too long under kError.
  void add(const EncodedRow& row, const std::string& where);

  int64_t tokens() const;
  int64_t rows() const;

  /// Returns the block of all rows since the last call, and clears the builder.
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

/// Computes TokenBlock::digest of a block.
uint64_t digest_of(const TokenBlock& block);

}  // namespace hone
