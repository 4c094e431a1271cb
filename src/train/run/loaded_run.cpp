#include "train/run/loaded_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <set>
#include <utility>

#include "config/run_options.h"
#include "core/base/error.h"
#include "core/cpu/numa.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "dist/control/control.h"
#include "params/frozen_weights.h"
#include "train/plan/data_identity.h"
#include "train/plan/model_identity.h"
#include "train/run/wall_clock.h"
#include "train/save/checkpoint_folder.h"

namespace hone {

namespace {

/// A run that is another one than the checkpoint's, whose files need not be checked to say so.
class OtherRun : public UserError {
 public:
  using UserError::UserError;
};

/// Whether an error in reading a checkpoint may come from damaged files.
bool may_be_damage(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  return dynamic_cast<const OtherRun*>(&error) == nullptr && (!known || known->code() != ExitCode::kDeviceFailed);
}

/// Resumes a run from a checkpoint.
class Resume {
 public:
  explicit Resume(LoadedRun& run) : run_(run), context_(run.context()), checkpoints_(run.config().report.output_dir) {}

  void from(std::optional<std::filesystem::path> checkpoint) {
    while (checkpoint) {
      const std::string problem = try_from(*checkpoint);
      if (problem.empty()) return;
      if (!run_.config().checkpoint.resume_from_checkpoint.newest()) {
        throw UserError("the checkpoint is damaged: " + problem, checkpoint->string(),
                        "resume=auto resumes from the newest complete one");
      }
      if (context_.writes()) {
        run_.logger().warning("{}", checkpoints_.pass_over(*checkpoint, problem).text);
        checkpoint = find_checkpoint(run_.config(), run_.logger());
      }
      checkpoint = run_.group().from_first(checkpoint);
    }
  }

 private:
  /// Collective. Returns what is damaged, the same on all ranks; "" on success.
  std::string try_from(const std::filesystem::path& checkpoint) {
    FileLedger ledger;
    const RunState before = run_.state;
    std::string problem = read(checkpoint, ledger);
    if (problem.empty()) problem = damage_of(checkpoint, ledger);
    if (!problem.empty()) {
      run_.state = before;
      return problem;
    }
    RunState& state = run_.state;
    if (context_.writes()) state.branch = checkpoints_.branch_from(state.step, state.branch);
    run_.engine().gather_values();
    if (state.total_steps > 0 && state.total_steps != run_.schedule().total_steps) {
      run_.logger().warning(
          "the stopped run was planned for {} steps, this one for {}: the learning rates of the rest differ",
          state.total_steps, run_.schedule().total_steps);
    }
    run_.resumed = true;
    run_.logger().info("resumed from {} at step {}{}", checkpoint.string(), state.step,
                       run_.config().checkpoint.resume_only_model ? ", with a new optimizer" : "");
    return "";
  }

  /// Collective: returns when every rank has read the checkpoint or failed to, so that the first rank may rename it.
  /// Returns what is damaged; "" on success. Throws if a rank cannot use a checkpoint whose files are intact.
  std::string read(const std::filesystem::path& checkpoint, FileLedger& ledger) {
    RankGroup& group = run_.group();
    std::exception_ptr error;
    std::string reason;
    bool unclear = false;
    try {
      context_.stream.synchronize();
      check_same_model(checkpoint);
      read_saved_weights(checkpoint, run_.model(), context_.pool, &ledger);
      read_position(checkpoint, ledger);
    } catch (const std::exception& failure) {
      error = std::current_exception();
      reason = reason_of(failure);
      if (reason.empty()) reason = "an error without a message";
      unclear = may_be_damage(failure);
    }
    const std::vector<std::string> reasons = group.exchange(reason);
    const auto failed = std::find_if(reasons.begin(), reasons.end(), [](const std::string& r) { return !r.empty(); });
    if (failed == reasons.end()) return "";
    // Errors from damaged files are misleading; errors from intact files are for the user. One rank tells them apart.
    const bool checks = unclear && context_.ranks.rank == failed - reasons.begin();
    const std::string damage = group.first_stated(checks ? contents_problem(checkpoint, {}) : "");
    if (!damage.empty()) return damage;
    if (error) std::rethrow_exception(error);
    throw_broken(group.communicator()->control(), fmt::format("rank {}: {}", failed - reasons.begin(), *failed));
  }

  /// Reads everything but the weights.
  void read_position(const std::filesystem::path& checkpoint, FileLedger& ledger) {
    const RunConfig::Checkpoint& options = run_.config().checkpoint;
    const Json now = run_.state.data, model = run_.state.model;  // identities of this run's data and model
    if (!options.resume_only_model) {
      run_.state = load_training_state(checkpoint, run_.store(), &ledger);
    } else if (const auto stored = read_run_state(checkpoint); stored && !options.ignore_data_skip) {
      run_.state = *stored;
      run_.state.optimizer_step = 0;
      run_.state.evaluation_due = false;  // after it the checkpoint would be written again, without its optimizer
    }
    if (options.ignore_data_skip) run_.state.first_data_step = run_.state.step;
    run_.state.evaluation_due &= run_.evaluates();
    run_.state.model = model;
    check_same_data(checkpoint, now);
  }

  /// An adapter goes on beside the base, and with the scaling, that it was trained with.
  void check_same_model(const std::filesystem::path& checkpoint) {
    const std::optional<RunState> stored = read_run_state(checkpoint);
    if (!stored) return;  // weights alone
    const Json& now = run_.state.model;
    if (stored->model.is_null()) {
      if (!run_.model().lora()) return;
      run_.logger().warning(
          "{} does not say which base its adapter belongs to, as checkpoints of earlier versions: model_name_or_path, "
          "base_weight_dtype, lora_alpha and use_rslora have to be those of the stopped run",
          checkpoint.filename().string());
      return;
    }
    const ModelDifference difference = model_difference(stored->model, now);
    if (!difference.named.empty()) run_.logger().info("changed since the stopped run: {}", difference.named);
    if (difference.refused.empty()) return;
    throw OtherRun("the model differs from that of the stopped run, so it cannot be resumed: " + difference.refused,
                   checkpoint.string(),
                   run_.model().lora() ? "restore " + difference.keys +
                                             "; or start a new run from these weights: "
                                             "adapter_name_or_path=" +
                                             checkpoint.string() + " with another output_dir"
                                       : "restore " + difference.keys);
  }

  void check_same_data(const std::filesystem::path& checkpoint, const Json& now) {
    RunState& state = run_.state;
    const bool anew = run_.config().checkpoint.ignore_data_skip;
    const std::string difference = identity_difference(state.data, now);
    if (!difference.empty() && !anew) {
      throw OtherRun(
          "the data differ from those of the stopped run, so it cannot be resumed: " + difference, checkpoint.string(),
          "restore its data and options; or ignore_data_skip: true keeps weights and optimizer and starts from "
          "the beginning of the data; or start a new run from these weights");
    }
    if (anew) {
      run_.logger().info("ignore_data_skip: the run starts from the beginning of the data{}",
                         difference.empty() ? "" : "; " + difference);
    }
    if (eval_differs(state.data, now)) {
      run_.logger().warning(
          "the validation data differ from those of the stopped run: its evaluations cannot be compared");
    }
    state.data = now;
  }

  /// What of a checkpoint differs from its manifest, beside what `ledger` says of the parts that were read; "" without
  /// a manifest. A file that cannot be read differs.
  static std::string contents_problem(const std::filesystem::path& checkpoint, const FileLedger& ledger,
                                      const std::set<std::string>& skip = {}) {
    try {
      const std::optional<Manifest> manifest = Manifest::read(checkpoint);
      return manifest ? manifest->contents_problem(checkpoint, ledger, skip) : "";
    } catch (const UserError& error) {
      return reason_of(error);
    } catch (const std::filesystem::filesystem_error& error) {
      return error.code().message();
    }
  }

  /// Collective: each rank has read its own part of sharded weights and optimizer state, and all of the rest. Files
  /// change only after it: the first rank alone reads what no other has read.
  std::string damage_of(const std::filesystem::path& checkpoint, FileLedger& ledger) {
    RankGroup& group = run_.group();
    std::error_code ignored;
    if (context_.writes() && !std::filesystem::exists(checkpoint / kManifestName, ignored)) {
      run_.logger().warning("{} has no {}: its files cannot be checked for damage", checkpoint.string(), kManifestName);
    }
    const bool shared = !run_.store().state_is_whole();
    std::string own;
    if (run_.store().values_are_whole()) {
      own = contents_problem(checkpoint, ledger,
                             shared ? std::set<std::string>{"training_state.safetensors"} : std::set<std::string>{});
    }
    const std::string problem = group.first_stated(own);
    if (!problem.empty() || !shared) return problem;
    FileLedger all;
    for (const std::string& pieces : group.exchange(ledger.pieces().dump())) all.merge(parse_json(pieces));
    return group.first_stated(context_.writes() ? contents_problem(checkpoint, all) : "");
  }

  LoadedRun& run_;
  RunContext& context_;
  CheckpointFolder checkpoints_;
};

}  // namespace

bool LoadedRun::evaluates() const {
  return !described().eval_batches.empty() && config().eval.eval_strategy != Cadence::kNo;
}

bool LoadedRun::is_due(Cadence strategy, const std::optional<int64_t>& steps) const {
  if (strategy == Cadence::kEpoch) return std::abs(state.epoch - std::round(state.epoch)) < 1e-9;
  return strategy == Cadence::kSteps && steps && *steps > 0 && state.step % *steps == 0;
}

std::optional<std::filesystem::path> find_checkpoint(const RunConfig& config, Logger& logger) {
  return CheckpointFolder(config.report.output_dir)
      .find(config.checkpoint.resume_from_checkpoint, config.checkpoint.resume_only_model,
            [&](const std::string& text) { logger.warning("{}", text); });
}

namespace {

void log_pinned(int64_t bytes, double seconds, Logger& logger) {
  logger.info("host memory pinned: {:.2f} GB in {:.1f} s", static_cast<double>(bytes) / 1e9, seconds);
}

/// Where experts that the CPU computes are, and the threads near them.
std::string experts_line(const ThreadPool& pool) {
  if (pool.nodes() == 1) return fmt::format("experts on the CPU: {} threads, not bound to NUMA nodes", pool.size());
  std::vector<int> threads(static_cast<size_t>(pool.nodes()));
  for (int thread = 0; thread < pool.size(); ++thread) ++threads[static_cast<size_t>(pool.node_of(thread))];
  return fmt::format("experts on the CPU: {} NUMA nodes with {} threads, each with its part of every layer's experts{}",
                     pool.nodes(), fmt::join(threads, " + "),
                     may_place_pages() ? "" : " (by first touch: mbind is not permitted)");
}

}  // namespace

void load_weights(const DescribedModel& described, RunContext& context, bool inference) {
  LoadedModel& model = *described.model;
  Logger& logger = context.logger;
  int64_t total = 0;
  for (const auto& [name, tensor] : model.checkpoint().tensors()) total += static_cast<int64_t>(tensor.entry->bytes);
  if (const auto& quantization = model.checkpoint().quantization()) {
    const WeightFormat& experts = expert_format_of(described.config);
    logger.info("the checkpoint is {}: dequantised to {}{} as it loads; trained weights are saved in bfloat16",
                quantization->name(), name_of(model.decoder().dtype()),
                experts.dense() ? "" : fmt::format(", and experts rounded to {},", experts.name()));
  }
  const WallClock::time_point begin = WallClock::now();
  const auto seed = static_cast<uint64_t>(described.config.machine.seed);
  // Memory is allocated before anything is read.
  const ParameterBytes needed = model.store().bytes(!inference);
  const int64_t host = context.device().kind == DeviceKind::kCuda ? needed.host - needed.on_host : 0;
  if (host > 0) logger.info("pinning {:.2f} GB of host memory", static_cast<double>(host) / 1e9);
  bool pinned = false;
  int64_t read = 0;
  model.load(context.device(), context.pool, seed, inference, [&](int64_t bytes) {
    read = bytes;
    if (host > 0 && !std::exchange(pinned, true)) log_pinned(host, seconds_since(begin), logger);
    logger.console().set_progress({.label = "load weights", .done = bytes, .total = total});
  });
  logger.console().clear_progress();
  if (model.lora()) order_frozen_weights(model.store(), context.pool);
  const bool in_files = model.store().keeps_values_in_files();
  logger.info("weights loaded: {:.2f} GB in {:.1f} s", static_cast<double>(in_files ? read : total) / 1e9,
              seconds_since(begin));
  if (in_files) {
    logger.info("frozen weights in files: {:.2f} GB, read for each use", static_cast<double>(total - read) / 1e9);
  }
  if (model.store().experts_on_host()) logger.info("{}", experts_line(context.pool));
}

void read_saved_weights(const std::filesystem::path& folder, LoadedModel& model, ThreadPool& pool, FileLedger* ledger) {
  if (model.lora()) return load_adapter(folder, model.store(), ledger);
  const Checkpoint weights = Checkpoint::open(folder, ledger);
  load_parameters(weights, model.map_of(weights), model.store(), pool);
}

LoadedRun load_planned(PlannedRun& planned, std::optional<std::filesystem::path> checkpoint) {
  const DescribedRun& described = planned.described;
  LoadedRun run{.planned = planned, .state = {}};
  run.state.model = model_identity(described);  // before weights are reordered
  load_weights(described, run.context(), false);
  const WallClock::time_point begin = WallClock::now();
  run.engine().reserve();
  const int64_t offloaded = planned.memory.host_activations;
  if (offloaded > 0 && run.context().device().kind == DeviceKind::kCuda) {
    log_pinned(offloaded, seconds_since(begin), run.logger());
  }
  run.state.seed = static_cast<uint64_t>(described.config.machine.seed);
  run.state.data = data_identity(described.data(), described.config);
  Resume(run).from(std::move(checkpoint));
  run.state.total_steps = described.schedule.total_steps;
  return run;
}

}  // namespace hone
