#include "app/bench/bench_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <optional>

#include "app/bench/bench_model.h"
#include "app/bench/bench_report.h"
#include "app/bench/bench_routing.h"
#include "app/model_source.h"
#include "app/output.h"
#include "app/verify/replay.h"
#include "config/resolve.h"
#include "config/run_options.h"
#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/base/printable.h"
#include "core/cpu/thread_pool.h"
#include "core/files/file_bytes.h"
#include "core/stream/profiler.h"
#include "core/text/json.h"
#include "params/frozen_weights.h"
#include "params/random_weights.h"
#include "report/humanise.h"
#include "report/table.h"
#include "report/terminal.h"
#include "session/device_facts.h"
#include "session/loaded_model.h"
#include "text/tokenizer.h"
#include "train/plan/memory_fit.h"
#include "train/plan/memory_rows.h"
#include "train/plan/planned_run.h"
#include "train/plan/recompute.h"
#include "train/report/profile_report.h"
#include "train/report/router_watch.h"
#include "train/step/engine.h"
#include "train/step/step_scope.h"
#include "weights/checkpoint.h"

namespace hone {

namespace {

constexpr int64_t kProfiledSteps = 3;
constexpr double kLearningRate = 1e-5;

struct Mode {
  bool lora = false, experts = false;
};

Mode mode_of(const BenchStepOptions& options) {
  const std::vector<std::string> modes = {"full", "lora", "lora-all"};
  if (std::find(modes.begin(), modes.end(), options.mode) == modes.end()) {
    throw UserError(fmt::format("'{}' is not a mode.{}", options.mode, did_you_mean(options.mode, modes)), "--mode",
                    "use full, lora or lora-all");
  }
  return {options.mode != "full", options.mode == "lora-all"};
}

/// On standard error, since results may be JSON on standard output.
void tell(const std::string& line) { fmt::print(stderr, "{}\n", line); }

/// The adapters of a mode, as keys. `sparse`: a model with experts.
UsualValues keys_of_mode(const BenchStepOptions& options, bool sparse) {
  const Mode mode = mode_of(options);
  if (!mode.lora) return {{"finetuning_type", "full"}};
  UsualValues keys = {{"finetuning_type", "lora"}};
  if (!mode.experts || !sparse) {
    keys.emplace_back("lora_target_modules", mode.experts ? "all-linear" : "attention");
  } else if (options.expert_lora == "shared" || options.expert_lora == "split") {
    keys.emplace_back("lora_target_modules", "[attention, all-experts]");
    keys.emplace_back("expert_lora", options.expert_lora);
  } else {
    throw UserError(fmt::format("'{}' is not a way to adapt experts", options.expert_lora), "--expert-lora",
                    "use shared or split");
  }
  return keys;
}

/// The run whose step is measured.
RunConfig run_of(const BenchStepOptions& options, bool sparse, const TrainerRanks& ranks) {
  UsualValues usual = usual_in_bench_step();
  for (auto& key : keys_of_mode(options, sparse)) usual.push_back(std::move(key));
  const bool in_backward = std::ranges::find(options.keys, "optimizer_in_backward=true") != options.keys.end();
  if (in_backward) usual.emplace_back("max_grad_norm", "0");
  ResolvedConfig config = resolve_keys(usual, options.keys, {ranks.size, ranks.ranks_of_host}, RuleUse::kTraining);
  if (ranks.rank == 0) {
    for (const std::string& note : config.notes) tell(note);
  }
  if (config.run.machine.experts_device == ExpertsOn::kAuto) {
    refuse(config, "experts_device", "what is measured has one place", "write gpu or cpu");
  }
  return config.run;
}

/// The run of a rank that trains alone.
RunConfig alone(RunConfig run) {
  run.machine.ranks = run.machine.ranks_of_host = run.machine.expert_parallel_size = 1;
  run.machine.shard_size = 0;
  run.machine.zero_stage = ZeroStage::kNone;
  return run;
}

/// Tokens of a rank's step.
int64_t tokens_of(const BenchStepOptions& options, const RunConfig& run) {
  return run.schedule.gradient_accumulation_steps * options.batch * options.seq;
}

/// Documents packed into one micro-batch; others for each step and rank.
class Documents {
 public:
  Documents(const BenchStepOptions& options, int64_t vocab_size) : options_(options), vocab_size_(vocab_size) {
    if (!options.text.empty()) read_text();
  }

  MicroBatch batch(int64_t number) const {
    PhiloxSequence random(mix_key(options_.seed, static_cast<uint64_t>(number)));
    std::vector<LabelledDocument> documents(static_cast<size_t>(options_.batch));
    for (LabelledDocument& document : documents) {
      document.input_ids = text_.empty() ? random_tokens(random) : piece_of_text(random);
      document.labels = document.input_ids;
    }
    return pack_documents(documents);
  }

 private:
  std::vector<int32_t> random_tokens(PhiloxSequence& random) const {
    std::vector<int32_t> tokens(static_cast<size_t>(options_.seq));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size_)));
    return tokens;
  }
  std::vector<int32_t> piece_of_text(PhiloxSequence& random) const {
    const auto begin = static_cast<int64_t>(random.below(text_.size() - static_cast<size_t>(options_.seq) + 1));
    return {text_.begin() + begin, text_.begin() + begin + options_.seq};
  }

  void read_text() {
    std::string tokenizer = options_.tokenizer;
    if (tokenizer.empty() && std::filesystem::is_directory(options_.model)) tokenizer = options_.model;
    if (tokenizer.empty()) {
      throw UserError("the tokenizer of the text is not known", "--tokenizer",
                      "give its folder, or a model's as --model");
    }
    text_ = Tokenizer::load(tokenizer).encode(read_whole_file(options_.text), false);
    if (text_.size() < static_cast<size_t>(options_.seq)) {
      throw UserError(fmt::format("the text has {} tokens, a document {}", text_.size(), options_.seq), options_.text,
                      "give a longer one, or lower --seq");
    }
    if (*std::max_element(text_.begin(), text_.end()) >= vocab_size_) {
      throw UserError(fmt::format("the text has tokens that the model has not: its vocabulary is {}", vocab_size_),
                      "--tokenizer", "give the model's own");
    }
  }

  const BenchStepOptions& options_;
  int64_t vocab_size_;
  std::vector<int32_t> text_;  // empty: random tokens
};

/// Seconds of a step: until the host has queued it, and until its loss has been read.
struct StepTime {
  double host = 0, whole = 0;
};

/// A model with random weights and the engine that trains it.
class BenchTraining {
 public:
  /// `run`: for all ranks, or of one that trains alone.
  BenchTraining(const BenchStepOptions& options, const RunConfig& run, const TrainerRanks& ranks, bool together)
      : options_(options),
        pool_(rank_threads(options.threads, ranks.cores_shared_by)),
        stream_(choose_rank_device(run.machine.device, ranks.local_rank, ranks.local_size, ranks.size), pool_),
        described_(describe(run, together ? ranks.rank : 0)),
        documents_(options, config().vocab_size),
        memory_before_(used_memory(device())),
        local_ranks_(ranks.local_size),
        communicator_(together ? ranks.connect(stream_) : nullptr) {
    warn_of_unused_gpu(run.machine.device, device());
    if (communicator_) mesh_.emplace(*communicator_, rank_share(described_.config, device(), ranks.rank));
    const int64_t tokens = options.batch * options.seq;
    EngineOptions engine = engine_options(described_, {tokens, options.batch, tokens, options.seq}, device());
    engine.ranks = mesh_ ? &*mesh_ : nullptr;
    described_.model->decoder().prepare(stream_, options.seq);
    draw_experts(tokens, ranks.rank);
    engine_ = std::make_unique<Engine>(described_.model->decoder(), described_.model->store(), stream_, engine);
    if (!experts_.empty()) engine_->force_experts(experts_);
    choose_recomputation();
    allocate();
  }

  Device device() const { return stream_.device(); }
  const DescribedModel& described() const { return described_; }
  const RunConfig& run() const { return described_.config; }
  const DecoderConfig& config() const { return described_.model->decoder().config(); }
  double forward_flops(const ForwardWork& work) const { return described_.model->decoder().flops(work); }
  const ParameterStore& store() const { return described_.model->store(); }
  std::string_view weights_fetched_by() const { return engine_->companions().weights_fetched_by(); }
  std::string_view tokens_exchanged_by() const { return engine_->companions().tokens_exchanged_by(); }
  uint64_t memory_before() const { return memory_before_; }
  Stream& stream() { return stream_; }
  Stream* host_stream() { return engine_->host_stream(); }
  /// The control channel of ranks that train together.
  Control& control() { return communicator_->control(); }

  /// A step; its results are in `result`. The next one's data are made before it waits, as in a run: what is still
  /// under way beside the next step's beginning has no pause in which to end unseen.
  StepTime step(int64_t index) {
    if (!next_) next_ = data_of(index);
    const StepData data = std::move(*next_);
    const auto begin = std::chrono::steady_clock::now();
    const auto elapsed = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    StepTime time;
    {
      const StepScope scope(stream_, host_stream(), index);
      const OptimizerStep optimizer_step{kLearningRate, index};
      engine_->accumulate(data, index, optimizer_step);
      engine_->start_update(optimizer_step);
      time.host = elapsed();
      next_ = data_of(index + 1);
      result = engine_->finish_update();
    }
    time.whole = elapsed();
    return time;
  }

  MemoryPlan plan;
  std::string recompute;
  StepResult result;

 private:
  StepData data_of(int64_t index) const {
    StepData data;
    const int64_t count = run().schedule.gradient_accumulation_steps * (communicator_ ? communicator_->size() : 1);
    for (int64_t i = 0; i < count; ++i) {
      data.micro_batches.push_back(documents_.batch(index * count + i));
    }
    return data;
  }

  DescribedModel describe(RunConfig run, int rank) const {
    auto model = std::make_unique<LoadedModel>(bench_model(options_.model, options_.layers), std::filesystem::path(),
                                               run.model.dtype);
    check_sizes(model->decoder().config());
    hold_experts(model->store(), run);
    model->set_trainable(trainable_options(run, device(), rank));
    return describe_model(std::move(run), std::move(model));
  }

  void check_sizes(const DecoderConfig& config) const {
    if (options_.seq < 2 || options_.batch < 1 || options_.steps < 1 || options_.warmup < 0) {
      throw UserError("a step needs documents of two tokens or more, and there must be one",
                      "--seq, --batch, --steps, --warmup");
    }
    const int64_t choices = std::max<int64_t>(1, config.moe.num_experts_per_tok);
    if (options_.seq > std::numeric_limits<int32_t>::max() / options_.batch / choices) {
      throw UserError("these are more tokens than a micro-batch can be", "--seq, --batch", "lower one of them");
    }
  }

  void hold_experts(ParameterStore& store, const RunConfig& run) const {
    constexpr const char* kKey = "expert_weight_dtype";
    const WeightFormat& experts = expert_format_of(run);
    check_expert_format(experts, experts_device_of(run, device()), kKey, "write experts_device=cpu, or device=cpu");
    if (!experts.dense()) hold_experts_in(store, experts, kKey);
  }

  /// Draws the experts of `tokens` tokens of this rank, where the routers are not to choose them.
  void draw_experts(int64_t tokens, int rank) {
    const BenchRouting routing(options_.routing);
    if (!routing.draws()) return;
    const int64_t layers = config().num_moe_layers(), k = config().moe.num_experts_per_tok;
    if (layers == 0) throw UserError("the model has no experts", "--routing", "leave it out");
    const Shape shape{tokens, k};
    const size_t bytes = static_cast<size_t>(shape.numel()) * sizeof(int32_t);
    expert_memory_ = Buffer(device(), static_cast<size_t>(layers) * bytes);
    for (int64_t layer = 0; layer < layers; ++layer) {
      experts_.push_back(expert_memory_.tensor(shape, DType::kI32, static_cast<size_t>(layer) * bytes));
      stream_.upload(experts_.back(), routing.draw(layer, tokens, config().moe.num_experts, k,
                                                   mix_key(options_.seed, static_cast<uint64_t>(rank))));
    }
  }

  void choose_recomputation() {
    described_.model->store().allocate_dry();
    const std::vector<std::string> levels = allowed_levels(run().model.gradient_checkpointing);
    MemoryLimit limit = memory_limit(stream_);
    if (communicator_) limit = least_of_ranks(limit, device(), local_ranks_, control());
    const FittingLevel choice = choose_level(levels, limit, *engine_);
    recompute = choice.level;
    plan = choice.plan;
    if (choice.fits) return;
    throw UserError(
        fmt::format("the step needs {}, {} are free", human_bytes(limit.needs(plan)), human_bytes(limit.most)),
        kMemoryPlan, "lower --layers, --batch or --seq, or use --mode lora");
  }

  void allocate() {
    ParameterStore& store = described_.model->store();
    store.allocate(device());
    {
      Arena scratch(device(), "initialise");
      scratch.reserve(0);
      const Context context(stream_, scratch);
      initialise_weights(context, store, config().initializer_range, options_.seed);
      initialise_lora(context, store, options_.seed);
      stream_.synchronize();
    }
    if (options_.mode != "full") order_frozen_weights(store, pool_);
    engine_->reserve();
  }

  const BenchStepOptions& options_;
  ThreadPool pool_;
  Stream stream_;
  DescribedModel described_;
  Documents documents_;
  uint64_t memory_before_;
  int local_ranks_;
  std::unique_ptr<Communicator> communicator_;  // null for one rank
  std::optional<RankMesh> mesh_;
  std::optional<StepData> next_;
  Buffer expert_memory_;
  std::vector<Tensor> experts_;     // that are drawn, of each MoE layer
  std::unique_ptr<Engine> engine_;  // last: its queued work uses the members above
};

struct Times {
  double median = 0, min = 0, max = 0;
  std::vector<double> all;
};

Times summary_of(std::vector<double> seconds) {
  Times times;
  times.all = seconds;
  std::sort(seconds.begin(), seconds.end());
  const size_t n = seconds.size();
  times.median = (seconds[(n - 1) / 2] + seconds[n / 2]) / 2;
  times.min = seconds.front();
  times.max = seconds.back();
  return times;
}

/// The formats of what is trained: of the largest trainable parameter.
Json precision_of(const ParameterStore& store) {
  const Parameter* largest = nullptr;
  for (const Parameter& p : store.all()) {
    if (p.trainable() && (largest == nullptr || p.shape().numel() > largest->shape().numel())) largest = &p;
  }
  HONE_ASSERT(largest != nullptr);
  const auto format = [](const Tensor& tensor) { return std::string(name_of(tensor.dtype)); };
  const auto int8 = [](const Parameter& p) { return &p.value().format() == &int8_format(); };
  return {{"weights", std::string(name_of(store.all().front().value().dtype()))},
          {"experts_in_int8", std::ranges::any_of(store.all(), int8)},
          {"trained", std::string(name_of(largest->value().dtype()))},
          {"master", format(stepped_value(*largest))},
          {"gradients", format(largest->gradient().whole())},
          {"moments",
           {moment_name(largest->state().moment1.values.dtype), moment_name(largest->state().moment2.values.dtype)}},
          {"optimizer_in_backward", store.layers_share_gradients()}};
}

Json memory_json(const BenchTraining& training, uint64_t used) {
  const ParameterBytes& p = training.plan.parameters;
  return {{"weights", p.weights},
          {"master", p.master},
          {"gradients", p.gradients},
          {"moments", p.moments},
          {"activations", training.plan.activations},
          {"batch", training.plan.batch},
          {"libraries", training.plan.libraries.all},
          {"plan", training.plan.total() + training.plan.libraries.all},
          {"host", training.plan.host()},
          {"host_shared", p.shared},
          {"used", used},
          {"used_before", training.memory_before()}};
}

Json results_of(const BenchStepOptions& options, const BenchTraining& training, const Times& times, const Times& host) {
  const RunConfig& run = training.run();
  const int64_t micro_batches = run.schedule.gradient_accumulation_steps;
  const auto tokens = static_cast<double>(tokens_of(options, run));
  const std::vector<double> documents(static_cast<size_t>(micro_batches * options.batch),
                                      static_cast<double>(options.seq));
  const double flops = training.forward_flops({tokens, tokens, documents}) / tokens * (options.mode == "full" ? 3 : 2);
  int64_t trained = 0;
  for (const Parameter& p : training.store().all()) trained += p.trainable() ? p.shape().numel() : 0;
  const GroupCount total = total_of(count_groups(training.store(), training.config().moe));
  Json milliseconds = Json::array();
  for (const double seconds : times.all) milliseconds.push_back(seconds * 1e3);
  Json json = bench_facts("step", training.device());
  json.update(
      {{"model", options.model},
       {"layers", training.config().layers.size()},
       {"mode", options.mode},
       {"seq", options.seq},
       {"batch", options.batch},
       {"micro_batches", micro_batches},
       {"cpu_offload", names_of(run.machine.cpu_offload)},
       {"experts_device", name_of(run.machine.experts_device)},
       {"weights_fetched_by", training.weights_fetched_by()},
       {"tokens_exchanged_by", training.tokens_exchanged_by()},
       {"warmup", options.warmup},
       {"steps", options.steps},
       {"dtype", name_of(run.model.dtype)},
       {"recompute", training.recompute},
       {"parameters", total.parameters},
       {"active", total.active},
       {"trained", trained},
       {"precision", precision_of(training.store())},
       {"tokens_per_second", tokens / times.median},
       {"step_ms",
        {{"median", times.median * 1e3}, {"min", times.min * 1e3}, {"max", times.max * 1e3}, {"all", milliseconds}}},
       {"host_ms", host.median * 1e3},
       {"cuda_graphs", name_of(run.machine.cuda_graphs)},
       {"model_flops_per_token", flops},
       {"model_tflops", flops * tokens / times.median / 1e12},
       {"memory", memory_json(training, used_memory(training.device()))},
       {"loss", training.result.loss.loss},
       {"grad_norm", training.result.grad_norm}});
  if (training.result.routing.layers > 0) {
    json["routing"] = options.routing;
    json["load_max_over_mean"] = mean_max_over_mean(layer_loads(training.result.routing));
  }
  if (options.mode != "full") json["lora_r"] = *run.lora.r;
  if (!options.text.empty()) json["text"] = options.text;
  if (run.machine.cpu_expert_layers) json["cpu_expert_layers"] = *run.machine.cpu_expert_layers;
  if (run.machine.offload_expert_layers) json["offload_expert_layers"] = *run.machine.offload_expert_layers;
  if (options.mode == "lora-all" && training.config().num_moe_layers() > 0) json["expert_lora"] = options.expert_lora;
  return json;
}

std::string heading(const Json& r) {
  return fmt::format(
      "{}, {} layer{}, {} parameters ({} active): {}, {} trained\n{} × {} tokens a step on {}, recompute {}\n",
      r["model"].get<std::string>(), r["layers"].get<int64_t>(), plural(r["layers"].get<int64_t>()),
      human_count(r["parameters"].get<double>()), human_count(r["active"].get<double>()), r["mode"].get<std::string>(),
      human_count(r["trained"].get<double>()), r["micro_batches"].get<int64_t>() * r["batch"].get<int64_t>(),
      r["seq"].get<int64_t>(), r["device_name"].get<std::string>(), r["recompute"].get<std::string>());
}

std::string tables(const Json& r, const BenchTraining& training, bool color) {
  Table speed({{"step"}, {"", Align::kRight}});
  const bool ranks = r.contains("ranks");
  speed.add_row({ranks ? "tokens a second and rank" : "tokens a second",
                 with_commas(static_cast<int64_t>(r["tokens_per_second"].get<double>()))});
  if (ranks) {
    const Json& share = r["share_of_one_rank"];
    speed.add_row({"ranks, zero_stage", fmt::format("{}, {}", r["ranks"].dump(), r["zero_stage"].dump())});
    speed.add_row({"of one rank alone", r["experts_device"] == name_of(ExpertsOn::kCpu)
                                            ? "not measured: each would hold all experts"
                                        : share.is_null() ? "does not fit"
                                                          : fmt::format("{:.1f} %", share.get<double>() * 100)});
  }
  const Json& ms = r["step_ms"];
  speed.add_row({"ms: median (least – most)", fmt::format("{:.1f} ({:.1f} – {:.1f})", ms["median"].get<double>(),
                                                          ms["min"].get<double>(), ms["max"].get<double>())});
  speed.add_row({"ms until the host has queued it", fmt::format("{:.1f}", r["host_ms"].get<double>())});
  if (ranks) {
    const Json& c = r["collectives"];
    speed.add_row({"ms of collectives, exposed",
                   fmt::format("{:.1f}, {:.1f} ({:.1f} % hidden)", c["ms"].get<double>(), c["exposed_ms"].get<double>(),
                               c["hidden_share"].get<double>() * 100)});
  }
  speed.add_row({"model TFLOP/s", fmt::format("{:.4g}", r["model_tflops"].get<double>())});
  if (r.contains("routing")) {
    speed.add_row({"busiest expert, times the mean", fmt::format("{:.2f}", r["load_max_over_mean"].get<double>())});
  }
  speed.add_row({"loss", fmt::format("{:.4f}", r["loss"].get<double>())});
  const std::vector<MemoryRow> rows =
      memory_rows(training.plan, precision_of(training.described().config), "recompute " + training.recompute);
  const std::string host = host_memory_line(training.plan, 0);
  return speed.to_string(color) + "\n" + memory_table(rows, 0, color) +
         fmt::format("  in use: {}\n", human_bytes(r["memory"]["used"].get<double>())) +
         (host.empty() ? "" : "  " + host + "\n");
}

}  // namespace

namespace {

struct Measured {
  Times whole, host;
};

/// `tells`: of steps that take seconds, one line each.
Measured measure(const BenchStepOptions& options, BenchTraining& training, bool tells) {
  constexpr double kLong = 2;
  std::vector<double> seconds, host_seconds;
  const int64_t all = options.warmup + options.steps;
  for (int64_t i = 0; i < all; ++i) {
    const StepTime time = training.step(i);
    if (tells && time.whole > kLong) {
      tell(fmt::format("step {} of {}: {:.1f} s{}", i + 1, all, time.whole, i < options.warmup ? " (warm-up)" : ""));
    }
    if (i < options.warmup) continue;
    seconds.push_back(time.whole);
    host_seconds.push_back(time.host);
  }
  return {summary_of(seconds), summary_of(host_seconds)};
}

/// What each rank has told, in milliseconds; null of one whose step does not fit.
Json alone_on_each(const std::optional<double>& alone, BenchTraining& training) {
  Json all = Json::array();
  for (const std::string& text : training.control().exchange(alone ? fmt::format("{}", *alone * 1e3) : "null")) {
    all.push_back(Json::parse(text));
  }
  return all;
}

/// How the ranks' mean step alone compares with a step together; null where one does not fit.
Json share_of_alone(const Json& alone, double together_ms) {
  double sum = 0;
  for (const Json& ms : alone) {
    if (ms.is_null()) return nullptr;
    sum += ms.get<double>();
  }
  return sum / static_cast<double>(alone.size()) / together_ms;
}

/// The time lines of a few steps.
struct Profiles {
  Profile device;
  std::optional<Profile> host;  ///< the experts' stages, if the CPU computes them
};

/// A few steps more; those of all ranks, which take them together.
Profiles profile_steps(const BenchStepOptions& options, BenchTraining& training) {
  Profiler profiler(training.stream());
  std::optional<Profiler> on_host;
  if (Stream* host = training.host_stream()) on_host.emplace(*host);
  for (int64_t i = 0; i < kProfiledSteps; ++i) training.step(options.warmup + options.steps + i);
  Profiles profiles{profiler.take(), {}};
  if (on_host) profiles.host = on_host->take();
  return profiles;
}

/// The median step of one rank that trains alone; none where that does not fit.
std::optional<double> seconds_alone(const BenchStepOptions& options, const RunConfig& run, const TrainerRanks& ranks) {
  try {
    BenchTraining training(options, alone(run), ranks, false);
    return measure(options, training, false).whole.median;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace

UsualValues usual_in_bench_step() { return {{"router_aux_loss_coef", "0"}}; }

int run_bench_step(const BenchStepOptions& options, const TrainerRanks& ranks) {
  mode_of(options);
  const BenchOutput output{
      options.json, options.profile, {options.model, options.text, options.tokenizer}, options.force};
  require_bench_output(output);  // on every rank: one that failed alone would leave the others waiting
  const bool together = ranks.size > 1;
  const bool sparse = read_decoder_config(bench_model(options.model, options.layers)).num_moe_layers() > 0;
  const RunConfig run = run_of(options, sparse, ranks);
  // Alone, each rank of a host would hold all experts there.
  const bool compares = together && run.machine.experts_device == ExpertsOn::kDevice;
  const std::optional<double> alone = compares ? seconds_alone(options, run, ranks) : std::nullopt;
  const bool tells = ranks.rank == 0;
  if (tells)
    tell(fmt::format("{}: making random weights, then {} steps", options.model, options.warmup + options.steps));
  BenchTraining training(options, run, ranks, together);
  const Measured measured = measure(options, training, tells);
  Json results = results_of(options, training, measured.whole, measured.host);
  const Json alone_ms = together ? alone_on_each(alone, training) : Json(nullptr);
  const bool profiled = together || !options.profile.empty();
  Profiles profiles;
  if (profiled) profiles = profile_steps(options, training);
  const Profile& profile = profiles.device;
  if (ranks.rank > 0) return 0;
  const ProfileSummary summary =
      summarise_profile(profile, static_cast<double>(kProfiledSteps * tokens_of(options, run)));
  if (together) {
    results["ranks"] = ranks.size;
    results["zero_stage"] = static_cast<int>(run.machine.zero_stage);
    if (run.machine.shard_size > 0) results["shard_size"] = run.machine.shard_size;
    if (run.machine.expert_parallel_size > 1) results["expert_parallel_size"] = run.machine.expert_parallel_size;
    results["alone_ms"] = alone_ms;
    results["share_of_one_rank"] = share_of_alone(alone_ms, measured.whole.median * 1e3);
    results["collectives"] = profile_json(summary)["collectives"];
  }
  const bool color = Terminal::of(1).color;
  std::string profile_text;
  if (!options.profile.empty()) {
    results["profile"] = profile_json(summary);
    write_bench_profile(output, profile);
    profile_text = "\n" + profile_table(summary, color);
    if (profiles.host) {
      const ProfileSummary on_host =
          summarise_profile(*profiles.host, static_cast<double>(kProfiledSteps * tokens_of(options, run)));
      results["profile_on_host"] = profile_json(on_host);
      write_bench_profile(output, *profiles.host, kHostEnding);
      profile_text += "\nExperts on the CPU:\n" + profile_table(on_host, color);
    }
  }
  write_and_print([&] { write_bench_json(output, results); },
                  options.json == "-" ? "" : heading(results) + tables(results, training, color) + profile_text);
  return 0;
}

}  // namespace hone
