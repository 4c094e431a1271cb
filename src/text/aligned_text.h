// A normalised text that maps each of its bytes to the bytes of the original that it came from.
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

/// The limit on how much normalisation and pre-tokenisation may lengthen a text in total: a tokenizer that lengthens a
/// text repeatedly would use all memory. Published tokenizers at most triple it (decomposed Hangul).
class LengthBudget {
 public:
  explicit LengthBudget(size_t text_bytes)
      : text_bytes_(text_bytes), left_(std::min(3 * text_bytes + (size_t{16} << 20), 63 * text_bytes + 4096)) {}

  /// Throws UserError beyond the budget.
  void spend(size_t bytes);

 private:
  size_t text_bytes_, left_;
};

/// A view of unchanged bytes of the original, or an own copy with one range of the original per byte.
class AlignedText {
 public:
  /// Unchanged bytes that start at byte `origin` of the original. Borrows `text` and `budget`; texts that are derived
  /// from this one spend the budget (null: no limit).
  explicit AlignedText(std::string_view text, uint32_t origin = 0, LengthBudget* budget = nullptr)
      : borrowed_(text), origin_(origin), budget_(budget) {}

  std::string_view text() const { return rewritten_ ? std::string_view(owned_) : borrowed_; }

  /// The bytes of the original for bytes [begin, end) of text(). An empty range, or one of inserted bytes only, gives
  /// an empty range at its position.
  ByteRange origin(size_t begin, size_t end) const;

  /// Bytes [begin, end) as a text; borrows this one's storage when it is unchanged.
  AlignedText slice(size_t begin, size_t end) const;

 private:
  friend class TextRewriter;

  std::string_view borrowed_;
  uint32_t origin_ = 0;
  LengthBudget* budget_ = nullptr;
  bool rewritten_ = false;
  std::string owned_;
  std::vector<ByteRange> ranges_;  // one for each byte of owned_
};

/// Builds a rewritten text from front to back.
class TextRewriter {
 public:
  explicit TextRewriter(const AlignedText& source) : source_(source) {}

  /// Keeps bytes [begin, end) of the source.
  void copy(size_t begin, size_t end);
  /// Replaces bytes [begin, end) of the source with `with`: each new byte maps to all of them. begin == end inserts.
  /// Throws UserError beyond the source's budget.
  void replace(size_t begin, size_t end, std::string_view with);
  /// Bytes written so far.
  size_t size() const { return result_.owned_.size(); }
  AlignedText finish();

 private:
  const AlignedText& source_;
  AlignedText result_{std::string_view()};
};

}  // namespace hone
