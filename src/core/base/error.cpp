#include "core/base/error.h"

#include <fmt/format.h>

#include <numeric>

#include "core/base/printable.h"

namespace hone {

namespace {

/// Messages contain text of untrusted files: makes it harmless for a terminal, and limits its length. Removes the
/// middle of a long text, since the cause is at the end of a message.
std::string shown(std::string_view text) {
  constexpr size_t kLongest = 4000, kEnd = 1000;
  if (text.size() <= kLongest) return one_line(text);
  const auto inside = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; };
  size_t head = kLongest - kEnd, tail = text.size() - kEnd;
  while (head > 0 && inside(head)) --head;  // not within a character
  while (inside(tail) && tail + 1 < text.size()) ++tail;
  return one_line(text.substr(0, head)) + " … " + one_line(text.substr(tail));
}

std::string compose(const std::string& what, const std::string& where, const std::string& fix) {
  std::string text = "error: " + shown(what);
  if (!where.empty()) text += "\n  where: " + shown(where);
  if (!fix.empty()) text += "\n  fix:   " + shown(fix);
  return text;
}

}  // namespace

Error::Error(ExitCode code, std::string what, std::string where, std::string fix)
    : std::runtime_error(compose(what, where, fix)),
      code_(code),
      message_(std::move(what)),
      where_(std::move(where)),
      fix_(std::move(fix)) {}

size_t edit_distance(std::string_view a, std::string_view b) {
  constexpr size_t kLongest = 256;  // the longest name compared: the work is quadratic
  if (std::max(a.size(), b.size()) > kLongest) return std::max(a.size(), b.size());
  std::vector<size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        next[j] = std::min(next[j], before[j - 2] + 1);
    }
    before = row;
    row.swap(next);
  }
  return row[b.size()];
}

void assertion_failed(const char* condition, const char* file, int line, const std::string& detail) {
  throw std::logic_error(fmt::format("internal error: {} does not hold at {}:{}{}{}", condition, file, line,
                                     detail.empty() ? "" : ": ", detail));
}

}  // namespace hone
