#include "app/bench/bench_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "app/bench/bench_model.h"
#include "app/bench/bench_report.h"
#include "app/bench/bench_sizes.h"
#include "app/bench/op_timer.h"
#include "app/bench/ops_report.h"
#include "app/output.h"
#include "core/base/error.h"
#include "core/cpu/cpu_peaks.h"
#include "core/cpu/thread_pool.h"
#include "core/cuda/cuda_queue.h"
#include "core/stream/process_kernels.h"
#include "core/stream/profiler.h"
#include "core/text/json.h"
#include "formats/fp8_names.h"
#include "kernels/cuda/tiers.h"
#include "ops/cast/cast.h"
#include "ops/linear/linear.h"
#include "report/terminal.h"
#include "session/device_facts.h"
#include "session/loaded_model.h"

namespace hone {

namespace {

/// What one run of the benchmark is about, of what the options list.
struct Point {
  int64_t tokens = 0, experts = 0;
  int threads = 0;
};

/// Every op of a step, the groups one after another.
std::vector<OpCaseMaker> op_cases(const BenchSizes& sizes) {
  OpCases cases(sizes);
  for (const OpBench& bench : op_benches()) {
    cases.op = bench.op;
    bench.add_cases(cases);
  }
  std::stable_sort(cases.makers.begin(), cases.makers.end(),
                   [](const OpCaseMaker& a, const OpCaseMaker& b) { return a.group < b.group; });
  return std::move(cases.makers);
}

/// A square product, as large as products are fastest.
OpCaseMaker square_product(int64_t side) {
  const auto make = [side](BenchData& data) {
    const Tensor x = data.random({side, side}, data.sizes.dtype);
    Weight& w = data.weight({side, side}, data.sizes.dtype, false);
    OpCase result;
    result.parts = {{"gemm", fmt::format("[{}, {}]", side, side), "linear", "forward", 0, 1}};
    result.backward = false;
    result.record = [x, &w](Tape& tape) { return linear(tape, tape.input(x), w); };
    return result;
  };
  return {"", OpGroup::kDense, {"gemm"}, make};
}

OpCaseMaker copy_of(int64_t bytes) {
  const auto make = [bytes](BenchData& data) {
    const int64_t count = bytes / 4;
    const Tensor from = data.random({count}, DType::kF32), to = data.take({count}, DType::kF32);
    OpCase result;
    result.parts = {{"copy", fmt::format("{} MB", bytes / 1000000), "copy", "", 2 * static_cast<double>(bytes)}};
    result.backward = false;
    result.record = [from, to](Tape& tape) {
      const ProfileScope scope(tape.context(), OpGroup::kMemoryBound, "copy");
      copy(tape.context(), from, to);
      return Var{};
    };
    return result;
  };
  return {"", OpGroup::kMemoryBound, {"copy"}, make};
}

/// The ops of a model at one point.
class OpsBenchmark {
 public:
  OpsBenchmark(const BenchOpsOptions& options, const Point& point)
      : options_(options), pool_(point.threads), stream_(choose_device(options.device, "--device"), pool_) {
    const bool gpu = stream_.device().kind == DeviceKind::kCuda;
    const auto recipe = choice_called<Fp8Recipe>(options_.fp8);
    check_fp8(recipe, stream_);
    result_.dtype = options_.dtype;
    if (recipe != Fp8Recipe::kOff) result_.dtype += fmt::format(", fp8 {}", recipe);
    result_.tokens = point.tokens > 0 ? point.tokens : options_.decode ? 64 : gpu ? 16384 : 2048;
    result_.seq =
        options_.decode ? std::max<int64_t>(options_.seq, 1) : std::clamp<int64_t>(options_.seq, 1, result_.tokens);
    result_.threads = gpu ? 0 : pool_.size();
    if (gpu) {
      const cuda::KernelTiers tiers = cuda::kernel_tiers(stream_);
      result_.tier = name_of(tiers.grouped_gemm);
      result_.shared_memory = tiers.shared_memory;
    }
    choose_model(gpu ? "qwen3-30b-a3b" : "cpu-moe");
    if (point.experts > 0) set_experts(point.experts);
    sizes_ = sizes();
    if (config_.num_moe_layers() > 0) result_.experts = config_.moe.num_experts;
  }

  Device device() const { return stream_.device(); }

  OpsResult run() {
    const std::vector<OpCaseMaker> makers = chosen();
    measure_ceilings();
    for (const OpCaseMaker& maker : makers) {
      if (!failure_.empty()) break;
      for (OpRow& row : run(maker)) {
        if (maker.op == options_.op || named(row.part.name)) result_.rows.push_back(std::move(row));
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

  BenchSizes sizes() const {
    BenchSizes sizes =
        bench_sizes(config_, result_.tokens, result_.seq, dtype_named(options_.dtype), stream_.device().kind);
    sizes.fp8 = {choice_called<Fp8Recipe>(options_.fp8), true};
    sizes.decode = options_.decode;
    return sizes;
  }

  /// The one that was asked for; else the usual one or, if that has no such op, the first of the known ones that has.
  void choose_model(const std::string& usual) {
    const auto set = [&](const std::string& model) {
      result_.model = model;
      config_ = read_decoder_config(bench_model(model, 0));
    };
    if (!options_.model.empty()) return set(options_.model);
    std::vector<std::string> models = bench_model_names();
    models.insert(models.begin(), usual);
    for (const std::string& model : models) {
      set(model);
      const std::vector<OpCaseMaker> makers = op_cases(sizes());
      if (std::any_of(makers.begin(), makers.end(), [&](const OpCaseMaker& maker) { return asked_for(maker); })) return;
    }
    set(usual);
  }

  bool named(const std::string& row) const { return row.find(options_.op) != std::string::npos; }
  bool asked_for(const OpCaseMaker& maker) const {
    return maker.op == options_.op ||
           std::any_of(maker.names.begin(), maker.names.end(), [&](const std::string& name) { return named(name); });
  }

  /// Only the makers with a row that was asked for.
  std::vector<OpCaseMaker> chosen() const {
    std::vector<OpCaseMaker> makers = op_cases(sizes_);
    std::vector<std::string> names;
    for (const OpCaseMaker& maker : makers) names.insert(names.end(), maker.names.begin(), maker.names.end());
    std::erase_if(makers, [&](const OpCaseMaker& maker) { return !asked_for(maker); });
    if (!makers.empty()) return makers;
    throw UserError(
        fmt::format("no op of {} is called '{}'.{}", result_.model, options_.op, did_you_mean(options_.op, names)),
        "--op", fmt::format("there are {}", fmt::join(names, ", ")));
  }

  std::vector<OpRow> run(const OpCaseMaker& maker) {
    std::vector<OpRow> rows;
    try {
      BenchData data(stream_, sizes_);
      const bool decode = options_.decode && !maker.op.empty();
      std::vector<OpCase> cases{maker.make(data)};
      const int copies = decode ? cases_in_graph(cases.front()) : 1;
      while (static_cast<int>(cases.size()) < copies) cases.push_back(maker.make(data));
      const SpanTimes times = decode ? time_in_graph(stream_, cases) : time_spans(stream_, cases.front());
      for (OpPart part : cases.front().parts) {
        const auto found = times.seconds.find({part.span, part.pass});
        const bool ran = found != times.seconds.end();
        if (ran && part.forwards > 0) part.flops += part.forwards * times.flops.at(part.span);
        rows.push_back(ran ? OpRow{part, found->second, "", times.kernels} : OpRow{part, 0, "did not run"});
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
    Ceilings& ceilings = result_.ceilings;
    ceilings.gemm = rate(square_product(side), &OpPart::flops);
    ceilings.bytes = rate(copy_of(bytes), &OpPart::bytes);
    stream_.synchronize();  // the measurement has the pool to itself
    ceilings.flops = gpu ? ceilings.gemm : measured_peak_flops(sizes_.dtype, pool_);
    if (!gpu) ceilings.int8 = measured_peak_flops(DType::kI8, pool_);
  }

  const BenchOpsOptions& options_;
  ThreadPool pool_;
  Stream stream_;
  DecoderConfig config_;
  BenchSizes sizes_;
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
  if (options.decode && options.fp8 != "off") {
    throw UserError("a pass of generation multiplies in the model's dtype", "--decode, --fp8", "leave one out");
  }
  const BenchOutput output{options.json, {}, {options.model, options.compare}, options.force};
  require_bench_output(output);
  const Json earlier = options.compare.empty() ? Json() : read_results(options.compare);
  if (!options.compare.empty() && earlier.value("decode", false) != options.decode) {
    throw UserError("one of the results is of --decode, the other is not", "--compare", "compare results of one kind");
  }
  std::vector<OpsResult> results;
  std::string failure;
  Device device;
  for (const Point& point : points_of(options)) {
    OpsBenchmark benchmark(options, point);
    device = benchmark.device();
    if (results.empty()) warn_of_unused_gpu(options.device, device);
    results.push_back(benchmark.run());
    failure = benchmark.failure();
    if (!failure.empty()) break;
  }
  const bool color = Terminal::of(1).color, sweep = axis != SweepAxis::kNone && failure.empty();
  Json json = all_json(results, device);
  if (options.decode) json["decode"] = true;
  const std::string table = sweep ? sweep_table(results, axis, color) : ops_table(results.back(), color);
  write_and_print([&] { write_bench_json(output, json); }, options.json == "-" ? "" : table);
  if (!failure.empty()) throw Error(ExitCode::kDeviceFailed, failure, "", "");
  if (options.compare.empty()) return 0;
  const std::vector<std::string> slower = regressions(json, earlier);
  for (const std::string& line : slower) print_error("slower: " + line + "\n");
  return slower.empty() ? 0 : static_cast<int>(ExitCode::kCheckFailed);
}

}  // namespace hone
