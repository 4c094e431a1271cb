#include "app/bench/ops_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/text/json.h"
#include "report/humanise.h"
#include "report/table.h"

namespace hone {

namespace {

/// "12.3 GFLOP/s", "1.2 TB/s"
std::string rate_text(double rate, const char* unit) {
  if (rate >= 1e15) return fmt::format("{:.3g} P{}/s", rate / 1e15, unit);
  if (rate >= 1e12) return fmt::format("{:.3g} T{}/s", rate / 1e12, unit);
  return fmt::format("{:.3g} G{}/s", rate / 1e9, unit);
}

/// What the op reaches at most, in FLOP/s where it has any.
std::string ceiling_text(const OpPart& part, const Ceilings& ceilings) {
  const double seconds = roofline_of(part, ceilings).seconds();
  if (seconds <= 0) return "";
  return part.flops > 0 ? rate_text(part.flops / seconds, "FLOP") : rate_text(part.bytes / seconds, "B");
}

std::string share_text(const OpRow& row, const Ceilings& ceilings) {
  const double seconds = roofline_of(row.part, ceilings).seconds();
  return seconds > 0 ? fmt::format("{:.0f} %", 100 * seconds / row.seconds) : "";
}

const char* limit_text(const OpPart& part, const Ceilings& ceilings) {
  const Roofline roofline = roofline_of(part, ceilings);
  if (roofline.seconds() <= 0) return "";
  return roofline.compute_seconds > roofline.memory_seconds ? "compute" : "memory";
}

}  // namespace

Roofline roofline_of(const OpPart& part, const Ceilings& ceilings) {
  const double flops = part.int8 ? ceilings.int8 : ceilings.flops;
  return {.compute_seconds = flops > 0 ? part.flops / flops : 0.0,
          .memory_seconds = ceilings.bytes > 0 ? part.bytes / ceilings.bytes : 0.0};
}

std::string ops_table(const OpsResult& result, bool color) {
  Table table({{"op"},
               {"shape"},
               {"ms", Align::kRight},
               {"FLOP/s", Align::kRight},
               {"bytes/s", Align::kRight},
               {"ceiling", Align::kRight},
               {"set by"},
               {"reached", Align::kRight},
               {"kernels"}});
  for (const OpRow& row : result.rows) {
    if (!row.missing.empty()) {
      table.add_row({row.part.name, "not there: " + row.missing});
      continue;
    }
    table.add_row({row.part.name, row.part.shape, fmt::format("{:.3f}", 1e3 * row.seconds),
                   row.part.flops > 0 ? rate_text(row.part.flops / row.seconds, "FLOP") : "",
                   row.part.bytes > 0 ? rate_text(row.part.bytes / row.seconds, "B") : "",
                   ceiling_text(row.part, result.ceilings), limit_text(row.part, result.ceilings),
                   share_text(row, result.ceilings), row.kernels});
  }
  const Ceilings& ceilings = result.ceilings;
  std::string machine = fmt::format("  this machine: {} in a square product, {} in a copy",
                                    rate_text(ceilings.gemm, "FLOP"), rate_text(ceilings.bytes, "B"));
  if (!result.tier.empty()) {
    machine += fmt::format(
        "\n  kernels of at most tier {} and {} KB of shared memory; those of an op without a name are the same for all "
        "tiers",
        result.tier, result.shared_memory >> 10);
  }
  if (result.threads > 0) {
    machine = fmt::format(
        "  this machine, {} threads: {} in registers ({} of int8), {} in a square product, {} in a copy\n"
        "  more than 100 %: the op's data stay in caches, which are faster than a copy",
        result.threads, rate_text(ceilings.flops, "FLOP"), rate_text(ceilings.int8, "FLOP"),
        rate_text(ceilings.gemm, "FLOP"), rate_text(ceilings.bytes, "B"));
  }
  return table.to_string(color) + machine + "\n";
}

Json ops_json(const OpsResult& result) {
  Json json = {{"model", result.model},
               {"tokens", result.tokens},
               {"seq", result.seq},
               {"dtype", result.dtype},
               {"gemm_tflops", result.ceilings.gemm / 1e12},
               {"peak_tflops", result.ceilings.flops / 1e12},
               {"copy_gbs", result.ceilings.bytes / 1e9},
               {"ops", Json::array()}};
  if (result.threads > 0) json["threads"] = result.threads;
  if (!result.tier.empty()) {
    json["tier"] = result.tier;
    json["shared_memory"] = result.shared_memory;
  }
  if (result.ceilings.int8 > 0) json["int8_peak_tflops"] = result.ceilings.int8 / 1e12;
  if (result.experts > 0) json["experts"] = result.experts;
  for (const OpRow& row : result.rows) {
    Json entry = {{"name", row.part.name}, {"shape", row.part.shape}};
    if (row.missing.empty()) {
      entry["ms"] = row.seconds * 1e3;
      entry["tflops"] = row.part.flops / row.seconds / 1e12;
      entry["gbs"] = row.part.bytes / row.seconds / 1e9;
      if (!row.kernels.empty()) entry["kernels"] = row.kernels;
      const Roofline roofline = roofline_of(row.part, result.ceilings);
      if (roofline.seconds() > 0) {
        entry["reached"] = roofline.seconds() / row.seconds;
        entry["limit"] = limit_text(row.part, result.ceilings);
      }
    } else {
      entry["missing"] = row.missing;
    }
    json["ops"].push_back(std::move(entry));
  }
  return json;
}

namespace {

/// One cell of a sweep, of a row and the same row of the first result.
std::string sweep_cell(const OpRow& row, const OpsResult& result, const OpRow& first, const OpsResult& first_result,
                       SweepAxis axis) {
  if (!row.missing.empty()) return "not there";
  const double ms = 1e3 * row.seconds, first_ms = 1e3 * first.seconds;
  const bool comparable = first.missing.empty() && &row != &first;
  switch (axis) {
    case SweepAxis::kThreads: {
      const std::string time = fmt::format("{:.3f}", ms);
      if (!comparable) return time;
      return fmt::format("{} ({:3.0f} %)", time, 100 * first_ms * first_result.threads / (ms * result.threads));
    }
    case SweepAxis::kTokens: {
      const double cost = 1e3 * ms / static_cast<double>(result.tokens);
      const std::string time = fmt::format("{:.3f}", cost);
      if (!comparable) return time;
      return fmt::format("{} ({:.2f} ×)", time, cost / (1e3 * first_ms / static_cast<double>(first_result.tokens)));
    }
    default:
      return comparable ? fmt::format("{:.3f} ({:.2f} ×)", ms, ms / first_ms) : fmt::format("{:.3f}", ms);
  }
}

std::string sweep_heading(const OpsResult& result, SweepAxis axis) {
  switch (axis) {
    case SweepAxis::kThreads:
      return fmt::format("{} thread{}", result.threads, result.threads == 1 ? "" : "s");
    case SweepAxis::kTokens:
      return with_commas(result.tokens) + " tokens";
    default:
      return fmt::format("{} experts", result.experts);
  }
}

const char* sweep_legend(SweepAxis axis) {
  switch (axis) {
    case SweepAxis::kThreads:
      return "  ms, and the parallel efficiency against the first column\n";
    case SweepAxis::kTokens:
      return "  µs for each token, and how many times that of the first column: 1 where cost is linear in tokens\n";
    default:
      return "  ms, and how many times those of the first column: 1 where cost does not depend on the number of "
             "experts\n";
  }
}

}  // namespace

std::string sweep_table(const std::vector<OpsResult>& results, SweepAxis axis, bool color) {
  std::vector<Table::Column> columns = {{"op"}};
  for (const OpsResult& result : results) columns.push_back({sweep_heading(result, axis), Align::kRight});
  Table table(columns);
  for (size_t row = 0; row < results.front().rows.size(); ++row) {
    std::vector<std::string> cells = {results.front().rows[row].part.name};
    for (const OpsResult& result : results) {
      cells.push_back(sweep_cell(result.rows[row], result, results.front().rows[row], results.front(), axis));
    }
    table.add_row(std::move(cells));
  }
  return table.to_string(color) + sweep_legend(axis);
}

std::vector<std::string> regressions(const Json& now, const Json& earlier) {
  std::map<std::string, double> before;
  for (const Json& row : earlier.at("ops")) {
    if (row.contains("ms"))
      before[row.at("name").get<std::string>() + row.at("shape").get<std::string>()] = row.at("ms");
  }
  std::vector<std::string> lines;
  for (const Json& row : now["ops"]) {
    const std::string name = row["name"];
    const auto found = before.find(name + row["shape"].get<std::string>());
    if (!row.contains("ms") || found == before.end()) continue;
    const double ms = row["ms"];
    if (ms > kBenchTolerance * found->second) {
      lines.push_back(fmt::format("{}: {:.3f} ms, {:.3f} before ({:+.1f} %)", name, ms, found->second,
                                  100 * (ms / found->second - 1)));
    }
  }
  return lines;
}

}  // namespace hone
