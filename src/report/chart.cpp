#include "report/chart.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "report/humanise.h"
#include "report/terminal.h"

namespace hone {

namespace {

/// `eighths` of columns as block characters.
std::string blocks(int64_t eighths) {
  static constexpr std::array<std::string_view, 8> kParts = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string text;
  for (int64_t i = 0; i < eighths / 8; ++i) text += "█";
  return text.append(kParts[static_cast<size_t>(eighths % 8)]);
}

}  // namespace

std::string bar_chart(std::span<const Bar> bars, int width, bool color) {
  int label_width = 0, count_width = 0;
  int64_t most = 1;
  std::vector<std::string> counts;
  for (const Bar& bar : bars) {
    counts.push_back(" " + with_commas(bar.count) + (bar.note.empty() ? "" : "  " + bar.note));
    label_width = std::max(label_width, display_width(bar.label));
    count_width = std::max(count_width, display_width(counts.back()));
    most = std::max(most, bar.count);
  }
  constexpr int kIndent = 2, kGap = 2;
  const int64_t room = std::max(10, width - kIndent - label_width - kGap - count_width);
  std::string text;
  for (size_t i = 0; i < bars.size(); ++i) {
    const auto exact = static_cast<double>(bars[i].count) / static_cast<double>(most) * static_cast<double>(8 * room);
    const int64_t eighths = bars[i].count == 0 ? 0 : std::max<int64_t>(1, static_cast<int64_t>(exact));
    text += std::string(kIndent, ' ') + pad_left(bars[i].label, label_width) + std::string(kGap, ' ') +
            styled(blocks(eighths), Style::kCyan, color) + counts[i] + "\n";
  }
  return text;
}

}  // namespace hone
