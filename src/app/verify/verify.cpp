#include "app/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "app/output.h"
#include "app/verify/replay.h"
#include "config/run_options.h"
#include "core/base/contains.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "data/packing/sample_store.h"
#include "dist/control/guarded.h"
#include "dist/transport/thread_ranks.h"
#include "session/device_facts.h"

namespace hone {

namespace {

// The bounds of the format. Two float32 results differ only by the order of sums; a case is accepted only if the
// reference's float32 and float64 runs agree within a fifth of the bounds.
constexpr double kLogits = 2e-5;
constexpr double kLoss = 1e-5;
constexpr double kGradient = 1e-4;
constexpr double kTokenLoss = 1e-4;
/// fp8: the permitted 1 - cosine of the gradient beside float32's.
constexpr double kFp8Cosine = 0.01;
/// bfloat16: the permitted ratio of the median tensor's error to that of the reference in bfloat16.
constexpr double kBFloat16Factor = 1.5;

struct RunBounds {
  double loss, grad_norm, change;
};
constexpr RunBounds kFull = {5e-5, 5e-4, 2e-2};
constexpr RunBounds kLoraAttention = {2e-5, 2e-4, 2e-3};
constexpr RunBounds kLoraExperts = {2e-5, 2e-4, 2e-2};

/// Factor of float32 bounds on a GPU, which has larger errors: it splits sums into more parts, and its functions (exp,
/// rsqrt) have errors of a few ulps.
constexpr double kGpuFactor = 5;

/// The checks of one case.
class Verification {
 public:
  /// `host_ranks`: of the ranks, how many are on each host; 0: all.
  Verification(const VerifyOptions& options, const RunConfig& run, Stream& stream, Communicator* ranks = nullptr,
               int host_ranks = 0)
      : options_(options),
        run_(run),
        stream_(stream),
        ranks_(ranks),
        host_ranks_(host_ranks),
        factor_(stream.device().kind == DeviceKind::kCuda ? kGpuFactor : 1.0),
        golden_(GoldenCase::read(options.case_directory)) {
    for (const auto& batch : golden_.batches) batches_.push_back(pack_documents(batch));
    packed_documents_ = pack_documents(golden_.documents.documents);
    std::vector<const MicroBatch*> all = {&packed_documents_};
    for (const MicroBatch& batch : batches_) all.push_back(&batch);
    capacity_.max_seqlen =
        static_cast<int64_t>(golden_.greedy.prompt.size()) + static_cast<int64_t>(golden_.greedy.tokens.size());
    capacity_.max_tokens = capacity_.max_seqlen;
    for (const MicroBatch* batch : all) {
      capacity_.max_tokens = std::max(capacity_.max_tokens, batch->tokens());
      capacity_.max_documents = std::max(capacity_.max_documents, batch->documents());
      capacity_.max_seqlen = std::max(capacity_.max_seqlen, batch->max_seqlen);
    }
    capacity_.max_supervised = capacity_.max_tokens;
  }

  std::vector<Check> float32_rows() {
    check_model();
    if (golden_.split_adapter) check_split_adapter();
    check_loras();
    return std::move(checks_);
  }

  std::vector<Check> bfloat16_rows();

  /// The rows of several ranks, and of data in host memory: gradients of several micro-batches, and the training runs.
  std::vector<Check> training_rows() {
    {
      Replay replay(model_path(), stream_, capacity_,
                    {.ranks = ranks_, .share = experts_only(), .host_ranks = host_ranks_});
      expect_tokens_of(replay.config());
      check_accumulation(replay, *replay.make_engine(0.0));
    }
    {
      Replay replay(model_path(), stream_, capacity_, run_options());
      check_full(replay);
    }
    check_loras();
    if (shards_more() || !run_.machine.cpu_offload.empty()) check_all_bits();
    return std::move(checks_);
  }

 private:
  std::filesystem::path path(const std::string& name) const { return golden_.directory / name; }
  std::filesystem::path model_path() const { return path("model"); }
  void add(Check check) { checks_.push_back(std::move(check)); }
  void add(std::vector<Check> checks) {
    for (Check& check : checks) checks_.push_back(std::move(check));
  }
  /// The noise of gradients on this device; what the reference's noise is on a CPU grows on a GPU as errors do.
  GradientNoise scaled(GradientNoise noise) const {
    for (auto& [tensor, value] : noise) value *= factor_;
    return noise;
  }
  double aux_coefficient(const Replay& replay) const {
    return golden_.aux ? replay.config().moe.router_aux_loss_coef : 0.0;
  }

  void expect_tokens_of(const DecoderConfig& config) const;
  void check_model();
  void check_batch(Replay& replay);
  void check_documents(Replay& replay, Engine& engine);
  void check_accumulation(Replay& replay, Engine& engine);
  void check_greedy(Replay& replay);
  void check_full(Replay& replay);
  void check_split_adapter();
  void check_loras() {
    if (golden_.lora_attention) check_lora("lora_attention", *golden_.lora_attention, kLoraAttention);
    const bool whole_rows = ranks_ == nullptr || stage() < ZeroStage::kValues;
    if (golden_.lora_dora && whole_rows) check_lora("lora_dora", *golden_.lora_dora, kLoraAttention);
    if (golden_.lora_experts) check_lora("lora_experts", *golden_.lora_experts, kLoraExperts);
  }
  ReplayOptions run_options(std::filesystem::path adapter = {}) const {
    return {.adapter = std::move(adapter),
            .ranks = ranks_,
            .share = rank_share(run_, stream_.device(), 0),
            .host_ranks = host_ranks_,
            .offload_activations = contains(run_.machine.cpu_offload, OffloadPart::kActivations)};
  }
  /// The options of the run that the one with run_options() is to equal bit for bit.
  ReplayOptions plain_options(std::filesystem::path adapter) const {
    const RankShare ours = rank_share(run_, stream_.device(), 0);
    return {.adapter = std::move(adapter),
            .ranks = ranks_,
            .share = {.stage = std::min(stage(), ZeroStage::kState),
                      .expert_ranks = ours.expert_ranks,
                      .host_expert_layers = ours.host_expert_layers},
            .host_ranks = host_ranks_};
  }
  ZeroStage stage() const { return run_.machine.zero_stage; }
  /// Only the experts' place, of what the run shares or has elsewhere.
  RankShare experts_only() const {
    return {.host_expert_layers = rank_share(run_, stream_.device(), 0).host_expert_layers};
  }
  bool shards_more() const { return ranks_ != nullptr && stage() > ZeroStage::kState; }
  void check_all_bits();
  void check_bits(const std::string& name, const ReferenceRun& run, const std::filesystem::path& adapter);
  StepData data_of_step(size_t step) const;
  void check_lora(const std::string& name, const ReferenceRun& run, const RunBounds& bounds);
  void check_run(const std::string& name, Replay& replay, const ReferenceRun& run, const RunBounds& bounds,
                 const HostTensors& initial, const ReferenceTensors& change, const std::filesystem::path& file);
  void check_logits(const std::string& name, const std::vector<float>& ours, const std::filesystem::path& file,
                    double noise);
  void check_gradients(const std::string& name, const Replay& replay, const std::filesystem::path& file,
                       const GradientNoise& noise);

  const VerifyOptions& options_;
  const RunConfig& run_;
  Stream& stream_;
  Communicator* ranks_;  // the ranks that train together, or null
  int host_ranks_;
  double factor_;  // multiplies all float32 bounds, and the noise of rows without training
  GoldenCase golden_;
  std::vector<MicroBatch> batches_;
  MicroBatch packed_documents_;
  BatchCapacity capacity_;
  std::vector<Check> checks_;
};

StepData step_of(std::vector<MicroBatch> micro_batches) {
  StepData data;
  data.micro_batches = std::move(micro_batches);
  return data;
}

void Verification::expect_tokens_of(const DecoderConfig& config) const {
  const auto expect = [&](const std::vector<int32_t>& ids, bool labels, const char* file) {
    for (int32_t id : ids) {
      if ((id < 0 || id >= config.vocab_size) && !(labels && id == kIgnoredLabel)) {
        throw UserError(fmt::format("{} is not a token of the model, whose vocab_size is {}", id, config.vocab_size),
                        path(file).string());
      }
    }
  };
  for (const auto& batch : golden_.batches) {
    for (const LabelledDocument& document : batch) {
      expect(document.input_ids, false, "batches.safetensors");
      expect(document.labels, true, "batches.safetensors");
    }
  }
  for (const auto& document : golden_.documents.documents) expect(document.input_ids, false, "expected.json");
  expect(golden_.greedy.prompt, false, "expected.json");
}

void Verification::check_model() {
  Replay replay(model_path(), stream_, capacity_, {.share = experts_only()});
  expect_tokens_of(replay.config());
  check_batch(replay);
  {
    const std::unique_ptr<Engine> engine = replay.make_engine(0.0);
    check_documents(replay, *engine);
    check_accumulation(replay, *engine);
  }
  check_greedy(replay);
  check_full(replay);
}

void Verification::check_full(Replay& replay) {
  const HostTensors initial = replay.values();
  const std::filesystem::path change_file = path("full_change.safetensors"), file = path("full_final.safetensors");
  if (std::filesystem::exists(change_file)) {
    check_run("full", replay, golden_.full, kFull, initial, read_reference_tensors(change_file), change_file);
    return;
  }
  HostTensors final = read_host_tensors(file);
  std::erase_if(final, [&](const auto& tensor) {  // a vision tower, which is not trained
    return replay.config().carried.contain(tensor.first);
  });
  const HostTensors change = changes(initial, final, file.string());
  check_run("full", replay, golden_.full, kFull, initial, {change.begin(), change.end()}, file);
}

void Verification::check_logits(const std::string& name, const std::vector<float>& ours,
                                const std::filesystem::path& file, double noise) {
  const HostTensors tensors = read_host_tensors(file);
  const auto it = tensors.find("logits");
  if (it == tensors.end()) throw UserError("the case lacks the tensor 'logits'", file.string());
  if (it->second.values.size() != ours.size()) {
    throw UserError(
        fmt::format("'logits' has {} numbers, the model and batch 0 give {}", it->second.values.size(), ours.size()),
        file.string());
  }
  add(compare_logits(name, ours, it->second.values, factor_ * kLogits, factor_ * noise));
}

void Verification::check_gradients(const std::string& name, const Replay& replay, const std::filesystem::path& file,
                                   const GradientNoise& noise) {
  add(compare_gradients(name, replay.gradients(), read_reference_tensors(file), file.string(), factor_ * kGradient,
                        scaled(noise)));
}

void Verification::check_batch(Replay& replay) {
  check_logits("logits", replay.logits(batches_[0]), path("logits.safetensors"), golden_.noise.logits);
  const std::unique_ptr<Engine> engine = replay.make_engine(aux_coefficient(replay));
  engine->accumulate(step_of({batches_[0]}), 0);
  const StepResult result = engine->measure();
  const RowNoise& noise = golden_.noise;
  add(compare_number("loss", result.loss_with_aux, golden_.loss, factor_ * kLoss, factor_ * noise.loss));
  if (golden_.aux_loss) {
    add(compare_number("aux loss", result.loss.aux_loss, *golden_.aux_loss, factor_ * kLoss, factor_ * noise.aux_loss));
  }
  check_gradients("gradients", replay, path("grads.safetensors"), noise.gradients);
}

void Verification::check_documents(Replay& replay, Engine& engine) {
  std::vector<double> alone, expected;
  for (size_t i = 0; i < golden_.documents.documents.size(); ++i) {
    const auto losses = replay.token_losses(engine, pack_documents({golden_.documents.documents[i]}));
    alone.insert(alone.end(), losses.begin(), losses.end());
    const auto& reference = golden_.documents.token_losses[i];
    expected.insert(expected.end(), reference.begin(), reference.end());
  }
  const double bound = factor_ * kTokenLoss, noise = factor_ * golden_.noise.token_losses;
  add(compare_absolute("documents alone, token losses", alone, expected, bound, noise));
  add(compare_absolute("documents packed, token losses", replay.token_losses(engine, packed_documents_), expected,
                       bound, noise));
  engine.accumulate(step_of({packed_documents_}), 0);
  engine.measure();
  check_gradients("documents packed, gradients", replay, path("packed_grads.safetensors"),
                  golden_.noise.packed_gradients);
}

void Verification::check_accumulation(Replay& replay, Engine& engine) {
  const ReferenceAccumulation& reference = golden_.accumulation;
  std::vector<MicroBatch> micro_batches;
  for (int64_t i : reference.batches) micro_batches.push_back(batches_[static_cast<size_t>(i)]);
  engine.accumulate(step_of(std::move(micro_batches)), 0);
  const StepResult result = engine.measure();
  const auto supervised = static_cast<double>(result.loss.supervised);
  const auto expected = static_cast<double>(reference.supervised_tokens);
  add(compare_absolute("accumulation, supervised tokens", {&supervised, 1}, {&expected, 1}, 0.0));
  add(compare_number("accumulation, loss", result.loss.loss, reference.loss, factor_ * kLoss,
                     factor_ * golden_.noise.accumulation_loss));
  add(compare_number("accumulation, grad norm", result.grad_norm, reference.grad_norm, factor_ * kGradient,
                     factor_ * golden_.noise.accumulation_grad_norm));
  check_gradients("accumulation, gradients", replay, path("accumulation_grads.safetensors"),
                  golden_.noise.accumulation_gradients);
}

void Verification::check_greedy(Replay& replay) {
  const ReferenceGeneration& greedy = golden_.greedy;
  const std::vector<int32_t>& first = golden_.batches[0][0].input_ids;
  const auto length = static_cast<std::ptrdiff_t>(std::min(greedy.prompt.size(), first.size()));
  add(compare_tokens("greedy, prompt is batch 0", {first.data(), static_cast<size_t>(length)},
                     {greedy.prompt.data(), static_cast<size_t>(length)}));
  const auto count = static_cast<int64_t>(greedy.tokens.size());
  add(compare_tokens("greedy tokens", replay.generate(greedy.prompt, count), greedy.tokens));
}

/// The data of a step: a batch of the case as one micro-batch, whose documents are divided among the ranks. With an
/// auxiliary loss, which is not linear, the first rank has all documents.
StepData Verification::data_of_step(size_t step) const {
  if (ranks_ == nullptr || golden_.aux) return step_of({batches_[step]});
  std::vector<MicroBatch> micro_batches;
  for (const LabelledDocument& document : golden_.batches[step]) micro_batches.push_back(pack_documents({document}));
  return step_of(std::move(micro_batches));
}

void Verification::check_run(const std::string& name, Replay& replay, const ReferenceRun& run, const RunBounds& bounds,
                             const HostTensors& initial, const ReferenceTensors& change,
                             const std::filesystem::path& file) {
  ReferenceOptimizer optimizer = run.optimizer;
  if (options_.change_optimizer) options_.change_optimizer(optimizer);
  const std::unique_ptr<Engine> engine = replay.make_engine(aux_coefficient(replay), optimizer.options());
  std::vector<double> loss, aux_loss, grad_norm, loss_reference, aux_loss_reference, grad_norm_reference;
  for (size_t i = 0; i < run.steps.size(); ++i) {
    const auto step = static_cast<int64_t>(i);
    engine->accumulate(data_of_step(i), step);
    const StepResult result = engine->update({run.learning_rate, step});
    loss.push_back(result.loss_with_aux);
    loss_reference.push_back(run.steps[i].loss);
    grad_norm.push_back(result.grad_norm);
    grad_norm_reference.push_back(run.steps[i].grad_norm);
    if (!run.steps[i].aux_loss) continue;
    aux_loss.push_back(result.loss.aux_loss);
    aux_loss_reference.push_back(*run.steps[i].aux_loss);
  }
  const ReferenceNoise noise = run.noise.value_or(ReferenceNoise{});
  add(compare_numbers(name + ", loss", loss, loss_reference, factor_ * bounds.loss, noise.loss));
  if (!aux_loss.empty()) {
    add(compare_numbers(name + ", aux loss", aux_loss, aux_loss_reference, factor_ * bounds.loss, noise.aux_loss));
  }
  add(compare_numbers(name + ", grad norm", grad_norm, grad_norm_reference, factor_ * bounds.grad_norm,
                      noise.grad_norm));
  add(compare_updates(name + ", change of weights", changes(initial, replay.values(), file.string()), change,
                      file.string(), factor_ * bounds.change, noise.change));
}

void Verification::check_lora(const std::string& name, const ReferenceRun& run, const RunBounds& bounds) {
  Replay replay(model_path(), stream_, capacity_, run_options(path(name + "_init")));
  const std::filesystem::path file = path(name + "_final") / "adapter_model.safetensors";
  const HostTensors initial = replay.values();
  const HostTensors change = changes(initial, read_host_tensors(file), file.string());
  check_run(name, replay, run, bounds, initial, {change.begin(), change.end()}, file);
}

namespace {

/// The trained values and the losses after some steps.
struct Bits {
  std::map<std::string, std::vector<std::byte>> values;
  std::vector<double> losses;
};

}  // namespace

/// Without clipping: stages sum the norm in different orders.
void Verification::check_bits(const std::string& name, const ReferenceRun& run, const std::filesystem::path& adapter) {
  constexpr size_t kSteps = 3;
  const auto train = [&](const ReplayOptions& how, const ReferenceOptimizer& reference) {
    OptimizerOptions optimizer = reference.options();
    optimizer.max_grad_norm = 0;
    Replay replay(model_path(), stream_, capacity_, how);
    const std::unique_ptr<Engine> engine = replay.make_engine(aux_coefficient(replay), optimizer);
    Bits bits;
    for (size_t i = 0; i < std::min(kSteps, run.steps.size()); ++i) {
      const auto step = static_cast<int64_t>(i);
      engine->accumulate(data_of_step(i), step);
      bits.losses.push_back(engine->update({run.learning_rate, step}).loss_with_aux);
    }
    engine->gather_values();
    for (const Parameter* p : replay.store().trainable()) bits.values[p->name()] = replay.whole_value(*p);
    return bits;
  };
  ReferenceOptimizer changed = run.optimizer;
  if (options_.change_optimizer) options_.change_optimizer(changed);
  const Bits ours = train(run_options(adapter), changed), plain = train(plain_options(adapter), run.optimizer);
  const std::string than = shards_more() ? "stage 1, resident" : "the resident run";
  Check check{.name = name + ", bits", .measure = "tensors and losses with other bits than " + than, .worst = {}};
  for (const auto& [tensor, bytes] : ours.values) check.error += bytes == plain.values.at(tensor) ? 0 : 1;
  for (size_t i = 0; i < ours.losses.size(); ++i) {
    check.error += std::memcmp(&ours.losses[i], &plain.losses[i], sizeof(double)) == 0 ? 0 : 1;
  }
  // NCCL's order of more than two addends depends on the sizes of buckets, which differ between stages.
  check.required = stream_.device().kind == DeviceKind::kCpu || ranks_ == nullptr || ranks_->size() == 2;
  add(check);
}

void Verification::check_all_bits() {
  check_bits("full", golden_.full, {});
  if (golden_.lora_attention) check_bits("lora_attention", *golden_.lora_attention, path("lora_attention_init"));
  if (golden_.lora_experts) check_bits("lora_experts", *golden_.lora_experts, path("lora_experts_init"));
}

void Verification::check_split_adapter() {
  const std::filesystem::path file = path("split_adapter") / "expected.safetensors";
  Replay replay(model_path(), stream_, capacity_, {.adapter = path("split_adapter"), .share = experts_only()});
  check_logits("split adapter, logits", replay.logits(batches_[0]), file, golden_.noise.split_logits);
  const std::unique_ptr<Engine> engine = replay.make_engine(0.0);
  engine->accumulate(step_of({batches_[0]}), 0);
  engine->measure();
  ReferenceTensors expected = read_reference_tensors(file);
  expected.erase("logits");
  add(compare_gradients("split adapter, gradients", replay.gradients(), expected, file.string(), factor_ * kGradient,
                        scaled(golden_.noise.split_gradients)));
}

double median(std::vector<double> values) {
  HONE_ASSERT(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<Check> Verification::bfloat16_rows() {
  if (golden_.bfloat16_gradient_error.empty()) {
    throw UserError("the case has no bfloat16 figures", path("expected.json").string(),
                    "make the case again with tools/make_case.py");
  }
  ExpertChoices choices;
  {
    Replay float32(model_path(), stream_, capacity_, {});
    expect_tokens_of(float32.config());
    float32.logits(batches_[0], &choices);
  }
  const Fp8Recipe fp8 = run_.model.fp8;
  check_fp8(fp8, stream_);
  Replay replay(model_path(), stream_, capacity_,
                {.dtype = DType::kBF16,
                 .share = experts_only(),
                 .fp8 = {fp8, run_.model.fp8_weight_gradients},
                 .fp8_keep = run_.model.fp8_keep});
  const std::unique_ptr<Engine> engine = replay.make_engine(aux_coefficient(replay));
  engine->force_experts(choices.ids);
  engine->accumulate(step_of({batches_[0]}), 0);
  const StepResult result = engine->measure();
  Check loss = compare_number("loss", result.loss_with_aux, golden_.loss, 0.0);
  loss.required = false;
  add(loss);
  const std::filesystem::path file = path("grads.safetensors");
  if (fp8 != Fp8Recipe::kOff) {
    add(compare_cosines(fmt::format("gradients in fp8 {}", fp8), replay.gradients(), read_reference_tensors(file),
                        file.string(), kFp8Cosine));
    return std::move(checks_);
  }
  std::vector<double> ours, reference;
  Check check{.name = "gradients, median tensor", .measure = "of a tensor's norm", .worst = {}};
  check.worst = relative_errors(replay.gradients(), read_reference_tensors(file), file.string());
  for (const TensorError& error : check.worst) ours.push_back(error.error);
  for (const auto& [name, error] : golden_.bfloat16_gradient_error) reference.push_back(error);
  check.error = median(std::move(ours));
  check.bound = kBFloat16Factor * median(std::move(reference));
  // The reference's router chose experts in bfloat16, Hone uses fixed choices: with routers the bound is loose.
  check.worst.resize(std::min<size_t>(check.worst.size(), 10));
  add(check);
  return std::move(checks_);
}

}  // namespace

bool VerifyReport::ok() const {
  return std::all_of(checks.begin(), checks.end(), [](const Check& c) { return !c.required || c.ok(); });
}

namespace {

VerifyReport report_of(const VerifyOptions& options, const RunConfig& run) {
  const std::filesystem::path directory = std::filesystem::absolute(options.case_directory).lexically_normal();
  VerifyReport report;
  report.case_name = (directory.has_filename() ? directory : directory.parent_path()).filename().string();
  report.dtype = name_of(run.model.dtype);
  return report;
}

/// Each rank checks its own copy of the run; the report has the worst results.
VerifyReport verify_ranks(const VerifyOptions& options, const RunConfig& run) {
  if (run.machine.device != "cpu" || run.model.dtype != DType::kF32) {
    throw UserError("ranks that are threads run on the CPU, in float32", "--ranks", "leave device and dtype out");
  }
  std::vector<std::vector<Check>> checks(static_cast<size_t>(options.ranks));
  run_ranks(options.ranks, [&](Communicator& ranks) {
    ThreadPool pool(std::max(1, options.threads / options.ranks));
    Stream stream(Device{}, pool);
    checks[static_cast<size_t>(ranks.rank())] = Verification(options, run, stream, &ranks).training_rows();
  });
  VerifyReport report = report_of(options, run);
  report.checks = std::move(checks.front());
  for (const std::vector<Check>& others : checks) {
    for (size_t i = 0; i < others.size(); ++i) {
      if (is_worse(others[i], report.checks[i])) report.checks[i] = others[i];
    }
  }
  return report;
}

/// The run of the keys, for `ranks` ranks.
RunConfig run_of(const VerifyOptions& options, const TrainerRanks& ranks) {
  const bool threads = ranks.size == 1;  // --ranks: all are on this host
  const RanksOfRun all =
      threads ? RanksOfRun{options.ranks, options.ranks} : RanksOfRun{ranks.size, ranks.ranks_of_host};
  const ResolvedConfig config = resolve_keys(usual_in_verify(), options.keys, all, RuleUse::kAlways);
  const RunConfig::Machine& machine = config.run.machine;
  if (machine.experts_device == ExpertsOn::kAuto) {
    refuse(config, "experts_device", "a case is replayed in one place", "write cpu or gpu");
  }
  if (config.run.model.dtype == DType::kF32) {
    if (all.all == 1 && machine.zero_stage != ZeroStage::kNone) {
      refuse(config, "zero_stage", "one rank has nothing to shard with", "give --ranks, or use hone launch");
    }
  } else if (all.all > 1 || !machine.cpu_offload.empty()) {
    refuse(config, "dtype", "the runs of several ranks, and with data in host memory, are compared in float32",
           "leave it out");
  }
  return config.run;
}

}  // namespace

UsualValues usual_in_verify() { return {{"device", "cpu"}, {"dtype", "float32"}}; }

VerifyReport verify_case(const VerifyOptions& options, const TrainerRanks& ranks) {
  const bool together = ranks.size > 1;
  if (options.ranks > 1 && together && options.ranks != ranks.size) {
    throw UserError(fmt::format("{} ranks have been started", ranks.size), "--ranks",
                    "leave it out: the launcher's number counts");
  }
  const RunConfig run = run_of(options, ranks);
  const bool trains_only = together || !run.machine.cpu_offload.empty();
  if (options.ranks > 1 && !together) return verify_ranks(options, run);
  const std::string& asked = run.machine.device;
  ThreadPool pool(rank_threads(options.threads, ranks.cores_shared_by));
  Stream stream(together ? choose_rank_device(asked, ranks.local_rank, ranks.local_size, ranks.size)
                         : choose_device(asked, "device"),
                pool);
  warn_of_unused_gpu(asked, stream.device());
  const std::unique_ptr<Communicator> communicator = together ? ranks.connect(stream) : nullptr;
  // float32 verifies the mathematics with the general kernels; bfloat16 uses the kernels of training.
  const bool exact = run.model.dtype == DType::kF32;
  if (exact) stream.use_general_kernels(true);
  return guarded(communicator ? &communicator->control() : nullptr, [&] {
    Verification verification(options, run, stream, communicator.get(), ranks.local_size);
    VerifyReport report = report_of(options, run);
    report.checks = trains_only ? verification.training_rows()
                    : exact     ? verification.float32_rows()
                                : verification.bfloat16_rows();
    return report;
  });
}

}  // namespace hone
