#include "app/bench/bench_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "app/bench/bench_model.h"
#include "app/bench/bench_report.h"
#include "app/bench/op_case.h"
#include "app/bench/op_timer.h"
#include "app/bench/ops_report.h"
#include "app/output.h"
#include "core/cpu_peaks.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "report/terminal.h"
#include "session/device_facts.h"

namespace hone {

namespace {

/// What one run of the benchmark is about, of what the options list.
struct Point {
  int64_t tokens = 0, experts = 0;
  int threads = 0;
};

/// The ops of a model at one point.
class OpsBenchmark {
 public:
  OpsBenchmark(const BenchOpsOptions& options, const Point& point)
      : options_(options), pool_(point.threads), stream_(choose_device(options.device, "--device"), pool_) {
    const bool gpu = stream_.device().kind == DeviceKind::kCuda;
    result_.model = !options_.model.empty() ? options_.model : gpu ? "qwen3-30b-a3b" : "cpu-moe";
    result_.dtype = options_.dtype;
    result_.tokens = point.tokens > 0 ? point.tokens : gpu ? 16384 : 2048;
    result_.seq = std::clamp<int64_t>(options_.seq, 1, result_.tokens);
    result_.threads = gpu ? 0 : pool_.size();
    sizes_ = {result_.tokens, result_.seq, dtype_named(options_.dtype), stream_.device().kind};
    config_ = read_decoder_config(bench_model(result_.model, 0));
    if (point.experts > 0) set_experts(point.experts);
    if (config_.num_moe_layers() > 0) result_.experts = config_.moe.num_experts;
  }

  Device device() const { return stream_.device(); }

  OpsResult run() {
    const std::vector<OpCaseMaker> makers = chosen(op_cases(config_, sizes_));
    measure_ceilings();
    for (const OpCaseMaker& maker : makers) {
      if (!failure_.empty()) break;
      for (OpRow& row : run(maker)) {
        if (row.part.name.find(options_.op) != std::string::npos) result_.rows.push_back(std::move(row));
      }
    }
    return result_;
  }

  /// Why the run ended early; "" if it did not.
  const std::string& failure() const { return failure_; }

 private:
  void set_experts(int64_t experts) {
    if (config_.num_moe_layers() == 0) {
      throw UserError(fmt::format("{} has no experts", result_.model), "--experts", "leave it out");
    }
    if (experts < config_.moe.num_experts_per_tok) {
      throw UserError(
          fmt::format("{} chooses {} experts for each token", result_.model, config_.moe.num_experts_per_tok),
          "--experts", "give at least so many");
    }
    config_.moe.num_experts = experts;
  }

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
        fmt::format("no op of {} is called '{}'.{}", result_.model, options_.op, did_you_mean(options_.op, names)),
        "--op", fmt::format("there are {}", fmt::join(names, ", ")));
  }

  std::vector<OpRow> run(const OpCaseMaker& maker) {
    std::vector<OpRow> rows;
    try {
      BenchData data(stream_);
      const OpCase op_case = maker.make(data);
      const SpanTimes times = time_spans(stream_, op_case);
      for (const OpPart& part : op_case.parts) {
        const auto found = times.find({part.span, part.pass});
        rows.push_back(found == times.end() ? OpRow{part, 0, "did not run"} : OpRow{part, found->second, ""});
      }
    } catch (const std::logic_error& error) {  // an assertion: this device has no such op
      rows = missing(maker, error.what());
    } catch (const Error& error) {  // a device that has failed runs nothing more
      failure_ = error.message();
      rows = missing(maker, failure_);
    }
    return rows;
  }

  static std::vector<OpRow> missing(const OpCaseMaker& maker, const std::string& why) {
    std::vector<OpRow> rows;
    for (const std::string& name : maker.names) {
      rows.push_back({OpPart{.name = name, .shape = "", .span = "", .pass = ""}, 0, why});
    }
    return rows;
  }

  void measure_ceilings() {
    const bool gpu = stream_.device().kind == DeviceKind::kCuda;
    const int64_t side = gpu ? 8192 : 1024, bytes = int64_t{1} << (gpu ? 30 : 28);
    const auto rate = [&](const OpCaseMaker& maker, double OpPart::*work) {
      const OpRow row = run(maker).front();
      return row.missing.empty() ? row.part.*work / row.seconds : 0.0;
    };
    const auto gemm = [&](BenchData& data) {
      OpCase result = linear_case(data, "gemm", {side, side, sizes_.dtype}, side, side, true);
      result.backward = false;
      result.gradient = {};
      return result;
    };
    Ceilings& ceilings = result_.ceilings;
    ceilings.gemm = rate({{"gemm"}, gemm}, &OpPart::flops);
    ceilings.bytes = rate({{"copy"}, [&](BenchData& data) { return copy_case(data, bytes); }}, &OpPart::bytes);
    stream_.synchronize();  // the measurement has the pool to itself
    ceilings.flops = gpu ? ceilings.gemm : measured_peak_flops(sizes_.dtype, pool_);
    if (!gpu) ceilings.int8 = measured_peak_flops(DType::kI8, pool_);
  }

  const BenchOpsOptions& options_;
  ThreadPool pool_;
  Stream stream_;
  OpSizes sizes_;
  DecoderConfig config_;
  OpsResult result_;
  std::string failure_;
};

Json read_results(const std::string& path) {
  std::ifstream file(path);
  Json json = Json::parse(file, nullptr, false);
  if (!json.is_object() || !json.contains("ops") || !json["ops"].is_array()) {
    throw UserError("these are not results of hone bench ops", path, "make some with --json FILE");
  }
  return json;
}

/// Which of the options has several values.
SweepAxis axis_of(const BenchOpsOptions& options) {
  std::vector<SweepAxis> axes;
  if (options.threads.size() > 1) axes.push_back(SweepAxis::kThreads);
  if (options.tokens.size() > 1) axes.push_back(SweepAxis::kTokens);
  if (options.experts.size() > 1) axes.push_back(SweepAxis::kExperts);
  if (axes.size() > 1) {
    throw UserError("only one option can have several values", "--threads, --tokens, --experts",
                    "give the others one value, or none");
  }
  if (!axes.empty() && !options.compare.empty()) {
    throw UserError("results are compared with those of one run", "--compare",
                    "give --threads, --tokens and --experts one value");
  }
  return axes.empty() ? SweepAxis::kNone : axes.front();
}

std::vector<Point> points_of(const BenchOpsOptions& options) {
  std::vector<Point> points;
  for (const int64_t tokens : options.tokens) {
    for (const int64_t experts : options.experts) {
      for (const int threads : options.threads) points.push_back({tokens, experts, threads});
    }
  }
  return points;
}

/// Facts of the machine with the result, or with a list of the results of a sweep.
Json all_json(const std::vector<OpsResult>& results, Device device) {
  Json json = bench_facts("ops", device);
  if (results.size() == 1) {
    json.update(ops_json(results.front()));
  } else {
    for (const OpsResult& result : results) json["points"].push_back(ops_json(result));
  }
  return json;
}

}  // namespace

int run_bench_ops(const BenchOpsOptions& options) {
  const SweepAxis axis = axis_of(options);
  const Json earlier = options.compare.empty() ? Json() : read_results(options.compare);
  std::vector<OpsResult> results;
  std::string failure;
  Device device;
  for (const Point& point : points_of(options)) {
    OpsBenchmark benchmark(options, point);
    device = benchmark.device();
    results.push_back(benchmark.run());
    failure = benchmark.failure();
    if (!failure.empty()) break;
  }
  const bool color = Terminal::of(1).color, sweep = axis != SweepAxis::kNone && failure.empty();
  if (options.json != "-") {
    print_text(sweep ? sweep_table(results, axis, color) : ops_table(results.back(), color));
  }
  const Json json = all_json(results, device);
  write_bench_json(options.json, json);
  if (!failure.empty()) throw Error(ExitCode::kDeviceFailed, failure, "", "");
  if (options.compare.empty()) return 0;
  const std::vector<std::string> slower = regressions(json, earlier);
  for (const std::string& line : slower) print_error("slower: " + line + "\n");
  return slower.empty() ? 0 : static_cast<int>(ExitCode::kCheckFailed);
}

}  // namespace hone
