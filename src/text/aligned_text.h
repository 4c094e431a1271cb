// A text that normalisation has rewritten, and for every byte of it the bytes of the original it came from.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hone {

/// Bytes [begin, end) of a text; texts are shorter than 4 GiB.
struct ByteRange {
  uint32_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

/// What normalisation and pre-tokenisation may add to a text, in all: a tokenizer that lengthens a text again and again
/// would take all memory. Published ones at most triple it (Hangul taken apart).
class LengthBudget {
 public:
  explicit LengthBudget(size_t text_bytes)
      : text_bytes_(text_bytes), left_(std::min(3 * text_bytes + (size_t{16} << 20), 63 * text_bytes + 4096)) {}

  /// UserError beyond the budget.
  void spend(size_t bytes);

 private:
  size_t text_bytes_, left_;
};

/// Either a view of unchanged bytes of the original, or own bytes with one range of the original each.
class AlignedText {
 public:
  /// Unchanged bytes that start at byte `origin` of the original; borrows `text`, and `budget`, which what is made of
  /// it spends (null: no bound).
  explicit AlignedText(std::string_view text, uint32_t origin = 0, LengthBudget* budget = nullptr)
      : borrowed_(text), origin_(origin), budget_(budget) {}

  std::string_view text() const { return rewritten_ ? std::string_view(owned_) : borrowed_; }

  /// The bytes of the original that bytes [begin, end) of text() stand for. An empty range, or one of inserted bytes
  /// alone, gives an empty range at its place.
  ByteRange origin(size_t begin, size_t end) const;

  /// Bytes [begin, end) as a text of their own; borrows this one's storage when it is unchanged.
  AlignedText slice(size_t begin, size_t end) const;

 private:
  friend class TextRewriter;

  std::string_view borrowed_;
  uint32_t origin_ = 0;
  LengthBudget* budget_ = nullptr;
  bool rewritten_ = false;
  std::string owned_;
  std::vector<ByteRange> ranges_;  // of owned_, one a byte
};

/// Builds a rewritten text from front to back.
class TextRewriter {
 public:
  explicit TextRewriter(const AlignedText& source) : source_(source) {}

  /// Keeps bytes [begin, end) of the source.
  void copy(size_t begin, size_t end);
  /// Puts `with` for bytes [begin, end) of the source: each new byte comes from all of them. begin == end inserts.
  /// UserError if the source's budget does not allow it.
  void replace(size_t begin, size_t end, std::string_view with);
  /// Bytes written so far.
  size_t size() const { return result_.owned_.size(); }
  AlignedText finish();

 private:
  const AlignedText& source_;
  AlignedText result_{std::string_view()};
};

}  // namespace hone
