// The reports of verify: a table and JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/output.h"
#include "app/verify/verify.h"
#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {

namespace {

const char* verdict(const Check& check) { return !check.required ? "shown" : check.ok() ? "ok" : "FAILED"; }

/// A number, or null for NaN and infinity, which JSON does not have.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

/// A note about bounds that the reference's noise set; "" if there are none.
std::string noise_text(const NoiseBounds& noise) {
  if (noise.count == 0) return "";
  if (noise.of == 1) return fmt::format("; bound: twice the reference's own noise {:.2g}", noise.largest);
  return fmt::format("; bound of {} of {}: twice the reference's own noise, at most {:.2g}", noise.count, noise.of,
                     noise.largest);
}

}  // namespace

std::string report_table(const VerifyReport& report) {
  size_t width = 0;
  for (const Check& check : report.checks) width = std::max(width, check.name.size());
  std::string text = fmt::format("{} in {}\n\n{:<{}}  {:>10}  {:>10}  {:<6}\n", report.case_name, report.dtype, "row",
                                 width, "worst", "bound", "");
  for (const Check& check : report.checks) {
    text += fmt::format("{:<{}}  {:>10.3g}  {:>10.3g}  {:<6}  {}{}\n", check.name, width, check.error, check.bound,
                        verdict(check), check.measure, noise_text(check.noise));
  }
  for (const Check& check : report.checks) {
    if (check.worst.empty()) continue;
    text += fmt::format("\nworst tensors of {}\n", check.name);
    for (const TensorError& tensor : check.worst) text += fmt::format("  {:>10.3g}  {}\n", tensor.error, tensor.name);
  }
  const auto failed =
      std::count_if(report.checks.begin(), report.checks.end(), [](const Check& c) { return c.required && !c.ok(); });
  text += failed == 0 ? fmt::format("\nall {} rows hold\n", report.checks.size())
                      : fmt::format("\n{} of {} rows FAILED\n", failed, report.checks.size());
  return text;
}

Json report_json(const VerifyReport& report) {
  Json rows = Json::array();
  for (const Check& check : report.checks) {
    Json row = {{"name", check.name},       {"worst", number(check.error)}, {"bound", number(check.bound)},
                {"measure", check.measure}, {"required", check.required},   {"ok", check.ok()}};
    if (check.noise.count > 0) {
      row["noise"] = {{"bounds", check.noise.count}, {"of", check.noise.of}, {"largest", check.noise.largest}};
    }
    for (const TensorError& tensor : check.worst) {
      row["tensors"].push_back({{"name", tensor.name}, {"error", number(tensor.error)}});
    }
    rows.push_back(std::move(row));
  }
  return {{"case", report.case_name}, {"dtype", report.dtype}, {"ok", report.ok()}, {"rows", std::move(rows)}};
}

int run_verify(const VerifyOptions& options, const TrainerRanks& ranks) {
  const VerifyReport report = verify_case(options, ranks);
  const std::string text = options.json ? report_json(report).dump(2) + "\n" : report_table(report);
  // The other ranks print only if one of their rows does not hold.
  if (ranks.rank == 0 || !report.ok()) print_text(text);
  return static_cast<int>(report.ok() ? ExitCode::kOk : ExitCode::kCheckFailed);
}

}  // namespace hone
