#include "app/bench/bench_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "app/bench/bench_model.h"
#include "app/bench/bench_report.h"
#include "app/bench/op_case.h"
#include "app/output.h"
#include "core/error.h"
#include "core/profiler.h"
#include "core/thread_pool.h"
#include "ops/start_gradient.h"
#include "report/table.h"
#include "report/terminal.h"
#include "train/device_facts.h"

namespace hone {

namespace {

/// Runs of a case that are timed: as many as take about this long, within these bounds.
constexpr double kSecondsPerCase = 0.3;
constexpr int64_t kFewestRuns = 5, kMostRuns = 50;

/// Seconds by (span, pass) of the medians over all runs.
using SpanTimes = std::map<std::pair<std::string, std::string>, double>;

SpanTimes medians_of(const std::vector<ProfileSpan>& spans) {
  std::map<std::pair<std::string, std::string>, std::vector<double>> times;
  int64_t steps = 0;
  double start_gradient = 0;
  for (const ProfileSpan& span : spans) {
    if (span.kind == ProfileKind::kBlock) continue;
    if (span.kind == ProfileKind::kStep) ++steps;
    auto& runs = times[{std::string(span.name), std::string(span.pass)}];
    runs.resize(static_cast<size_t>(steps), 0.0);
    runs.back() += span.end - span.begin;  // an op may have several nodes
    if (span.name == "start_gradient") start_gradient += span.end - span.begin;
  }
  SpanTimes medians;
  for (auto& [key, runs] : times) {
    std::sort(runs.begin(), runs.end());
    medians[key] = runs[runs.size() / 2];
  }
  // The whole run stands for the layer, to which the gradient comes from the next one.
  if (steps > 0) medians[{"step", ""}] -= start_gradient / static_cast<double>(steps);
  return medians;
}

/// Runs cases and times their spans.
class OpTimer {
 public:
  explicit OpTimer(Stream& stream) : stream_(stream) {}

  SpanTimes time(const OpCase& op_case) {
    TapeMemory memory(stream_.device());
    const Context context(stream_, memory.scratch);
    TapePlan plan;
    const auto run = [&] {
      const ProfileScope scope(context, ProfileKind::kStep, "step");
      Tape tape(context, memory, plan, {.training = true, .recompute = {}});
      tape.block([&] {
        const Var output = op_case.record(tape);
        if (op_case.gradient.defined()) StartGradient::record(tape, output, op_case.gradient);
      });
      if (op_case.backward) tape.backward();
    };
    for (int pass = 0; pass < 2; ++pass) {
      memory.begin_dry();
      run();
    }
    memory.reserve();
    Profiler profiler(stream_);
    run();  // libraries choose their algorithms
    profiler.take();
    run();
    const double once = medians_of(profiler.take().spans).at({"step", ""});
    const auto runs = static_cast<int64_t>(kSecondsPerCase / std::max(once, 1e-6));
    for (int64_t i = 0; i < std::clamp(runs, kFewestRuns, kMostRuns); ++i) run();
    return medians_of(profiler.take().spans);
  }

 private:
  Stream& stream_;
};

struct Row {
  OpPart part;
  double seconds = 0;
  std::string missing;  ///< why it was not run
};

/// FLOP/s and bytes/s that this machine reaches.
struct Ceilings {
  double flops = 0, bytes = 0;
};

class OpsBenchmark {
 public:
  explicit OpsBenchmark(const BenchOpsOptions& options)
      : options_(options),
        pool_(options.threads),
        stream_(choose_device(options.device, "--device"), pool_),
        timer_(stream_) {
    const bool gpu = stream_.device().kind == DeviceKind::kCuda;
    if (options_.model.empty()) options_.model = gpu ? "qwen3-30b-a3b" : "cpu-moe";
    if (options_.tokens <= 0) options_.tokens = gpu ? 16384 : 2048;
    sizes_ = {options_.tokens, std::clamp<int64_t>(options_.seq, 1, options_.tokens), DType::kBF16};
    if (options_.dtype == "float32") {
      sizes_.dtype = DType::kF32;
    } else if (options_.dtype != "bfloat16") {
      throw UserError(fmt::format("'{}' is not a dtype to train in", options_.dtype), "--dtype",
                      "use bfloat16 or float32");
    }
  }

  std::vector<Row> run() {
    const std::vector<OpCaseMaker> makers =
        chosen(op_cases(read_decoder_config(bench_model(options_.model, 0)), sizes_));
    measure_ceilings();
    std::vector<Row> rows;
    for (const OpCaseMaker& maker : makers) {
      if (!failure_.empty()) break;
      for (Row& row : run(maker)) {
        if (row.part.name.find(options_.op) != std::string::npos) rows.push_back(std::move(row));
      }
    }
    return rows;
  }

  const Ceilings& ceilings() const { return ceilings_; }
  /// Why the run ended early; "" if it did not.
  const std::string& failure() const { return failure_; }

  Json json(const std::vector<Row>& rows) const {
    Json json = bench_facts("ops", stream_.device());
    json.update({{"model", options_.model},
                 {"tokens", sizes_.tokens},
                 {"seq", sizes_.seq},
                 {"dtype", options_.dtype},
                 {"gemm_tflops", ceilings_.flops / 1e12},
                 {"copy_gbs", ceilings_.bytes / 1e9},
                 {"ops", Json::array()}});
    for (const Row& row : rows) {
      Json entry = {{"name", row.part.name}, {"shape", row.part.shape}};
      if (row.missing.empty()) {
        entry["ms"] = row.seconds * 1e3;
        entry["tflops"] = row.part.flops / row.seconds / 1e12;
        entry["gbs"] = row.part.bytes / row.seconds / 1e9;
      } else {
        entry["missing"] = row.missing;
      }
      json["ops"].push_back(std::move(entry));
    }
    return json;
  }

 private:
  /// Only the makers with a row that was asked for.
  std::vector<OpCaseMaker> chosen(std::vector<OpCaseMaker> makers) const {
    std::vector<std::string> names;
    for (const OpCaseMaker& maker : makers) names.insert(names.end(), maker.names.begin(), maker.names.end());
    std::erase_if(makers, [&](const OpCaseMaker& maker) {
      return std::none_of(maker.names.begin(), maker.names.end(),
                          [&](const std::string& name) { return name.find(options_.op) != std::string::npos; });
    });
    if (!makers.empty()) return makers;
    throw UserError(
        fmt::format("no op of {} is called '{}'.{}", options_.model, options_.op, did_you_mean(options_.op, names)),
        "--op", fmt::format("there are {}", fmt::join(names, ", ")));
  }

  std::vector<Row> run(const OpCaseMaker& maker) {
    std::vector<Row> rows;
    try {
      BenchData data(stream_);
      const OpCase op_case = maker.make(data);
      const SpanTimes times = timer_.time(op_case);
      for (const OpPart& part : op_case.parts) {
        const auto found = times.find({part.span, part.pass});
        rows.push_back(found == times.end() ? Row{part, 0, "did not run"} : Row{part, found->second, ""});
      }
    } catch (const std::logic_error& error) {  // an assertion: this device has no such op
      rows = missing(maker, error.what());
    } catch (const Error& error) {  // a device that has failed runs nothing more
      failure_ = error.message();
      rows = missing(maker, failure_);
    }
    return rows;
  }

  static std::vector<Row> missing(const OpCaseMaker& maker, const std::string& why) {
    std::vector<Row> rows;
    for (const std::string& name : maker.names) {
      rows.push_back({OpPart{.name = name, .shape = "", .span = "", .pass = ""}, 0, why});
    }
    return rows;
  }

  void measure_ceilings() {
    const bool gpu = stream_.device().kind == DeviceKind::kCuda;
    const int64_t side = gpu ? 8192 : 1024, bytes = int64_t{1} << (gpu ? 30 : 27);
    const auto rate = [&](const OpCaseMaker& maker, double OpPart::*work) {
      const Row row = run(maker).front();
      return row.missing.empty() ? row.part.*work / row.seconds : 0.0;
    };
    const auto gemm = [&](BenchData& data) {
      OpCase result = linear_case(data, "gemm", {side, side, sizes_.dtype}, side, side, true);
      result.backward = false;
      result.gradient = {};
      return result;
    };
    ceilings_.flops = rate({{"gemm"}, gemm}, &OpPart::flops);
    ceilings_.bytes = rate({{"copy"}, [&](BenchData& data) { return copy_case(data, bytes); }}, &OpPart::bytes);
  }

  BenchOpsOptions options_;
  ThreadPool pool_;
  Stream stream_;
  OpTimer timer_;
  OpSizes sizes_;
  Ceilings ceilings_;
  std::string failure_;
};

std::string share_text(double rate, double ceiling) {
  return rate > 0 && ceiling > 0 ? fmt::format("{:.0f} %", 100 * rate / ceiling) : "";
}

std::string table_of(const std::vector<Row>& rows, const Ceilings& ceilings, bool color) {
  Table table({{"op"},
               {"shape"},
               {"ms", Align::kRight},
               {"TFLOP/s", Align::kRight},
               {"of GEMM", Align::kRight},
               {"GB/s", Align::kRight},
               {"of copy", Align::kRight}});
  for (const Row& row : rows) {
    if (!row.missing.empty()) {
      table.add_row({row.part.name, "not there: " + row.missing});
      continue;
    }
    const double flops = row.part.flops / row.seconds, bytes = row.part.bytes / row.seconds;
    table.add_row({row.part.name, row.part.shape, fmt::format("{:.3f}", 1e3 * row.seconds),
                   flops > 0 ? fmt::format("{:.4g}", flops / 1e12) : "", share_text(flops, ceilings.flops),
                   bytes > 0 ? fmt::format("{:.0f}", bytes / 1e9) : "", share_text(bytes, ceilings.bytes)});
  }
  return table.to_string(color) +
         fmt::format("  this machine: {:.4g} TFLOP/s in a square product, {:.0f} GB/s in a copy\n",
                     ceilings.flops / 1e12, ceilings.bytes / 1e9);
}

/// What has become slower than in `earlier`, a line each.
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

Json read_results(const std::string& path) {
  std::ifstream file(path);
  Json json = Json::parse(file, nullptr, false);
  if (!json.is_object() || !json.contains("ops") || !json["ops"].is_array()) {
    throw UserError("these are not results of hone bench ops", path, "make some with --json FILE");
  }
  return json;
}

}  // namespace

int run_bench_ops(const BenchOpsOptions& options) {
  const Json earlier = options.compare.empty() ? Json() : read_results(options.compare);
  OpsBenchmark benchmark(options);
  const std::vector<Row> rows = benchmark.run();
  const Json results = benchmark.json(rows);
  if (options.json != "-") print_text(table_of(rows, benchmark.ceilings(), Terminal::of(1).color));
  write_bench_json(options.json, results);
  if (!benchmark.failure().empty()) throw Error(ExitCode::kDeviceFailed, benchmark.failure(), "", "");
  if (options.compare.empty()) return 0;
  const std::vector<std::string> slower = regressions(results, earlier);
  for (const std::string& line : slower) print_error("slower: " + line + "\n");
  return slower.empty() ? 0 : static_cast<int>(ExitCode::kCheckFailed);
}

}  // namespace hone
