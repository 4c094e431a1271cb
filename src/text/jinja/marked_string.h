// Text with the provenance of each of its characters: the basis of exact loss masks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hone::jinja {

/// Identifies one input value of a rendering (a string, number, list or object passed to the template). The caller
/// assigns the numbers; the engine only copies them.
using SourceId = uint32_t;

/// The source of text that the template itself wrote.
constexpr SourceId kTemplateText = 0;

/// Offset of characters that represent an input as a whole: the digits of a number, quotes and brackets of JSON.
constexpr size_t kWholeInput = SIZE_MAX / 2;

/// A run of characters with one provenance, from the end of the previous run to `end`.
struct Run {
  size_t end = 0;
  SourceId source = kTemplateText;  ///< the input that the characters came from
  size_t offset = 0;                ///< byte of that input that the first byte came from, or kWholeInput; else 0
  SourceId owner = 0;               ///< the input object of the loop iteration that wrote them; 0: none
  bool generation = false;          ///< written inside {% generation %}
};

/// UTF-8 bytes and runs that cover them without gaps. Positions are in bytes.
class MarkedString {
 public:
  MarkedString() = default;
  explicit MarkedString(std::string text, SourceId source = kTemplateText);

  const std::string& text() const { return text_; }
  std::string_view view() const { return text_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }

  void append(const MarkedString& other) { append_part(other, 0, other.size()); }
  /// Appends bytes [begin, end) of `other` with their provenance.
  void append_part(const MarkedString& other, size_t begin, size_t end);
  /// Appends `replacement` with the provenance of the character at byte `at` of `other` (an escape, a changed case).
  void append_standing_for(std::string_view replacement, const MarkedString& other, size_t at);
  /// Appends text that represents `source` as a whole; by default template text.
  void append_text(std::string_view text, SourceId source = kTemplateText);
  /// Appends `other` as output of the iteration of `owner`: runs that have an owner keep it.
  void append_output(const MarkedString& other, SourceId owner, bool generation);

  /// Bytes [begin, end) with their provenance.
  MarkedString part(size_t begin, size_t end) const;
  /// The run that contains byte `at` (at < size()).
  const Run& run_at(size_t at) const;

 private:
  void push_run(Run run);

  std::string text_;
  std::vector<Run> runs_;
};

// Operations on strings with provenance, shared by methods and filters.

/// Bytes [begin, end) of a string.
struct Piece {
  size_t begin, end;
};

/// str.split / str.rsplit: at `separator`, or at runs of white space if null; at most `max_splits` times if >= 0.
std::vector<Piece> split(std::string_view text, const std::string_view* separator, int64_t max_splits, bool from_right);

/// str.splitlines.
std::vector<Piece> split_lines(std::string_view text, bool keep_ends);

/// str.replace; at most `max_count` times if >= 0.
MarkedString replaced(const MarkedString& text, std::string_view old, const MarkedString& replacement,
                      int64_t max_count);

/// How often str.replace replaces `old`.
size_t count_occurrences(std::string_view text, std::string_view old);

enum class Case { kUpper, kLower, kTitle, kCapital, kSwapped, kFolded };
MarkedString with_case(const MarkedString& text, Case wanted);

/// `text` without the white space (or the characters of `stripped`, if not null) at its ends.
MarkedString trimmed(const MarkedString& text, const std::string_view* stripped, bool left, bool right);

}  // namespace hone::jinja
