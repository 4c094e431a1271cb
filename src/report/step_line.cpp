#include "report/step_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/humanise.h"
#include "report/terminal.h"

namespace hone {
namespace {

constexpr int kMargin = 2, kGap = 2;

struct Field {
  std::string label, value;
  int value_width = 0;
  int keep = 0;      // the field with the smallest is left out first
  bool bad = false;  // not finite
  std::string unit = {};
};

std::string loss_text(double loss) {
  if (!std::isfinite(loss) || std::abs(loss) >= 1000) return short_number(loss);
  return fmt::format("{:.{}f}", loss, std::abs(loss) < 10 ? 4 : std::abs(loss) < 100 ? 3 : 2);
}

// Two digits behind the zeros are enough for a norm, and keep its column narrow.
std::string norm_text(double norm) {
  if (std::isfinite(norm) && norm >= 0.001 && norm < 0.1) return fmt::format("{:.3f}", norm);
  return std::isfinite(norm) && norm > 0 && norm < 0.001 ? fmt::format("{:.0e}", norm) : short_number(norm);
}

Field number_field(std::string label, double value, std::string text, int width, int keep) {
  return {std::move(label), std::move(text), width, keep, !std::isfinite(value)};
}

std::string percent(double share) { return std::isfinite(share) ? fmt::format("{:.1f}%", 100 * share) : "NaN"; }

std::vector<Field> step_fields(const StepMetrics& m) {
  std::vector<Field> fields;
  fields.push_back(number_field("loss", m.loss, loss_text(m.loss), 6, 9));
  if (m.mean_token_accuracy) {
    fields.push_back(number_field("acc", *m.mean_token_accuracy, percent(*m.mean_token_accuracy), 6, 1));
  }
  fields.push_back(number_field("grad", m.grad_norm, norm_text(m.grad_norm), 5, 5));
  fields.push_back(number_field("lr", m.learning_rate, short_number(m.learning_rate), 7, 4));
  fields.push_back(number_field("", m.tokens_per_second, human_count(m.tokens_per_second), 5, 8));
  fields.back().unit = " tok/s";
  if (const auto memory = m.max_alloc ? m.max_alloc : m.host_rss) {
    fields.push_back(number_field("mem", *memory, human_bytes(*memory), 7, 2));
  }
  if (m.router_load_max_over_mean) {
    const double load = *m.router_load_max_over_mean;
    fields.push_back(number_field("expert", load, short_number(load) + "x", 5, 3));
  }
  if (m.eta) fields.push_back({"eta", human_duration(*m.eta), 6, 6, false});
  return fields;
}

int width_of(const Field& field) {
  const int label = field.label.empty() ? 0 : display_width(field.label) + 1;
  return label + std::max(field.value_width, display_width(field.value)) + display_width(field.unit);
}

void leave_out_what_does_not_fit(std::vector<Field>& fields, int width) {
  const auto total = [&] {
    int sum = 0;
    for (const auto& field : fields) sum += kGap + width_of(field);
    return sum;
  };
  while (fields.size() > 1 && total() > width) {
    fields.erase(
        std::min_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) { return a.keep < b.keep; }));
  }
}

std::string shown(const Field& field, bool color) {
  const std::string label = field.label.empty() ? "" : styled(field.label + " ", Style::kDim, color);
  const Style style = field.bad ? Style::kRed : Style::kPlain;
  return label + pad_left(styled(field.value, style, color), field.value_width) +
         styled(field.unit, Style::kDim, color);
}

}  // namespace

std::string step_column(int64_t step, const LineLayout& layout) {
  const std::string total = std::to_string(layout.total_steps);
  if (layout.total_steps <= 0) return fmt::format("{:>{}}", step, kMargin + 6);
  return fmt::format("{:>{}}/{}", step, kMargin + total.size(), total);
}

std::string step_line(const StepMetrics& metrics, const LineLayout& layout) {
  const std::string step = step_column(metrics.step, layout);
  auto fields = step_fields(metrics);
  leave_out_what_does_not_fit(fields, layout.width - display_width(step));
  std::string line = styled(step, Style::kBold, layout.color);
  for (const auto& field : fields) line += std::string(kGap, ' ') + shown(field, layout.color);
  return line;
}

std::string eval_line(const EvalMetrics& metrics, const LineLayout& layout) {
  std::vector<Field> fields = {
      number_field("eval loss", metrics.eval_loss, loss_text(metrics.eval_loss), 6, 0),
      number_field("perplexity", metrics.eval_perplexity, short_number(metrics.eval_perplexity), 0, 0)};
  if (metrics.eval_mean_token_accuracy) {
    const double accuracy = *metrics.eval_mean_token_accuracy;
    fields.push_back(number_field("accuracy", accuracy, percent(accuracy), 0, 0));
  }
  if (metrics.seconds > 0) fields.push_back({"in", human_duration(metrics.seconds), 0, 0, false});
  std::string line = styled(step_column(metrics.step, layout), Style::kBold, layout.color);
  for (const auto& field : fields) line += std::string(kGap, ' ') + shown(field, layout.color);
  if (metrics.is_best) line += std::string(kGap, ' ') + styled("best so far", Style::kGreen, layout.color);
  return line;
}

}  // namespace hone
