#include "app/merge/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>

#include "app/batch_logits.h"
#include "app/output.h"
#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "models/hf_config.h"
#include "params/adapter.h"
#include "params/without_adapters.h"
#include "report/humanise.h"
#include "session/model_path.h"
#include "text/tiktoken.h"
#include "train/plan/adapter_tokenizer.h"
#include "train/save/model_card.h"
#include "train/save/saved_chat.h"
#include "train/save/saved_tokenizer.h"
#include "train/step/device_batch.h"
#include "weights/adapter.h"
#include "weights/adapter_folder.h"
#include "weights/merged_model.h"
#include "weights/model_folder.h"
#include "weights/rounded_base.h"

namespace hone {
namespace {

constexpr int64_t kPromptTokens = 32;
constexpr uint64_t kPromptSeed = 0x70726f6265;

const char* const kTexts[] = {
    "The river rises in the hills above the old town and reaches the sea after some forty miles.",
    "Question: a train leaves at 9:40 and arrives at 13:05. How long does the journey take?\nAnswer:",
    "def mean(values):\n    return sum(values) / len(values)\n\nprint(mean([1.5, 2.5, 6]))\n",
    "Der Zug nach Basel fährt heute von Gleis 7; il treno per Milano è in ritardo; 東京駅で乗り換えます。",
};

MicroBatch pack(const std::vector<std::vector<int32_t>>& prompts) {
  MicroBatch batch;
  batch.cu_seqlens = {0};
  for (const std::vector<int32_t>& prompt : prompts) {
    for (size_t i = 0; i < prompt.size(); ++i) batch.positions.push_back(static_cast<int32_t>(i));
    batch.sample_ids.insert(batch.sample_ids.end(), prompt.size(), batch.documents());
    batch.input_ids.insert(batch.input_ids.end(), prompt.begin(), prompt.end());
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.input_ids.size()));
    batch.max_seqlen = std::max(batch.max_seqlen, static_cast<int64_t>(prompt.size()));
  }
  return batch;
}

BatchCapacity capacity_of(const MicroBatch& batch) {
  return {.max_tokens = batch.tokens(),
          .max_documents = batch.documents(),
          .max_supervised = 0,
          .max_seqlen = batch.max_seqlen};
}

}  // namespace

std::vector<std::vector<int32_t>> probe_prompts(const Tokenizer* tokenizer, int64_t vocab_size) {
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t i = 0; i < std::size(kTexts); ++i) {
    std::vector<int32_t> prompt;
    if (tokenizer) {
      prompt = tokenizer->encode(kTexts[i], true);
      std::erase_if(prompt, [&](int32_t id) { return id >= vocab_size; });
    }
    PhiloxSequence random(mix_key(kPromptSeed, i));
    while (prompt.empty() || (!tokenizer && static_cast<int64_t>(prompt.size()) < kPromptTokens)) {
      prompt.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size))));
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

Probe::Probe(std::vector<std::vector<int32_t>> prompts, Stream& stream)
    : prompts_(std::move(prompts)), stream_(stream) {}

std::vector<float> Probe::logits(LoadedModel& model) {
  const Routing routing = recorded_ ? Routing::kForced : Routing::kRecord;
  recorded_ = true;
  return run(model, routing);
}

void Probe::allocate_choices(const DecoderConfig& config) {
  int64_t tokens = 0;
  for (const std::vector<int32_t>& prompt : prompts_) tokens += static_cast<int64_t>(prompt.size());
  const Shape shape{tokens, config.moe.num_experts_per_tok};
  const size_t bytes = static_cast<size_t>(shape.numel()) * sizeof(int32_t);
  const auto layers = static_cast<size_t>(config.num_moe_layers());
  if (layers == 0) return;
  choice_memory_ = Buffer(stream_.device(), layers * bytes);
  for (size_t i = 0; i < layers; ++i) choices_.push_back(choice_memory_.tensor(shape, DType::kI32, i * bytes));
}

std::vector<float> Probe::run(LoadedModel& model, Routing routing) {
  const MicroBatch host = pack(prompts_);
  DeviceBatchMemory batch_memory(stream_.device(), capacity_of(host));
  const DeviceBatch batch = batch_memory.upload(stream_, host);
  model.decoder().prepare(stream_, batch.max_seqlen);
  Forward forward;
  if (routing == Routing::kRecord) allocate_choices(model.decoder().config());
  if (routing == Routing::kRecord) forward.recorded_expert_ids = choices_;
  if (routing == Routing::kForced) forward.forced_expert_ids = choices_;
  PassCompanions companions(model.decoder(), model.store(), stream_);
  return batch_logits(companions, batch, forward);
}

double relative_difference(std::span<const float> a, std::span<const float> b) {
  HONE_ASSERT(a.size() == b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  const double result = std::sqrt(difference / std::max(norm, std::numeric_limits<double>::min()));
  return std::isfinite(result) ? result : std::numeric_limits<double>::infinity();
}

namespace {

namespace fs = std::filesystem;

int64_t deepest_product(const DecoderConfig& model) {
  int64_t depth = model.hidden_size;
  for (const LayerConfig& layer : model.layers) {
    depth = std::max({depth, layer.intermediate_size, model.num_attention_heads * model.head_dim_of(layer)});
  }
  return std::max(depth, model.moe.moe_intermediate_size);
}

double products_in_a_row(const DecoderConfig& model) { return 4.0 * static_cast<double>(model.layers.size()) + 1.0; }

[[noreturn]] void drifted(const std::string& what, double drift, double bound) {
  throw Error(ExitCode::kCheckFailed,
              fmt::format("{}: the logits differ by {:.2e}, more than the bound {:.2e}", what, drift, bound), "",
              "nothing was written; more than rounding is a fault of the program or of memory: please report it");
}

BaseFormat base_of(const MergeOptions& options) {
  return BaseFormat::parse(options.base_weight_dtype, "--base-weight-dtype");
}

/// The weights that are rounded before they are merged.
std::map<const Parameter*, const PackedFormat*> rounding_of(ParameterStore& store, const MergeOptions& options) {
  const PackedFormat* format = base_of(options).packed();
  if (format == nullptr) return {};
  return packed_weights(
      store, [=](const Parameter&) { return format; }, options.base_weight_keep);
}

/// The least precise dtype of the files.
DType coarsest_dtype(const Checkpoint& checkpoint) {
  DType coarsest = DType::kF32;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.entry->dtype == DType::kBF16) return DType::kBF16;
    if (tensor.entry->dtype == DType::kF16) coarsest = DType::kF16;
  }
  return coarsest;
}

/// Compares a model's logits before and after merging and writing. Has one float32 model in memory at a time.
class LogitComparison {
 public:
  LogitComparison(const MergeOptions& options, const fs::path& base, ThreadPool& pool)
      : pool_(pool), stream_(Device{}, pool) {
    LoadedModel model(base, DType::kF32, dense_format(), vocab_rows_of_adapter(options.adapter));
    model.set_trainable(TrainableOptions::nothing(options.adapter));
    std::optional<Tokenizer> tokenizer;
    if (has_tokenizer(base)) tokenizer = Tokenizer::load(tokenizer_folder(base, options.adapter));
    config_ = model.decoder().config();
    probe_ = std::make_unique<Probe>(probe_prompts(tokenizer ? &*tokenizer : nullptr, config_.vocab_size), stream_);
    model.load(stream_.device(), pool_, 0, true);
    if (!base_of(options).in_dtype()) round_in_memory(model, options);
    merge_in_memory(model, options.tolerance.value_or(merge_tolerance(config_)));
  }

  /// Loads the written model, compares its logits, and returns a line about that.
  std::string check_written(const fs::path& directory) {
    LoadedModel written(directory, DType::kF32);
    const DType coarsest = coarsest_dtype(written.checkpoint());
    written.set_trainable(TrainableOptions::nothing());
    written.load(stream_.device(), pool_, 0, true);
    const double drift = relative_difference(probe_->logits(written), merged_);
    const double bound = rounding_tolerance(config_, coarsest);
    if (!(drift <= bound)) drifted("written and read again", drift, bound);
    return fmt::format("written in {} and read again they differ by {:.1e} (bound {:.1e})\n", name_of(coarsest), drift,
                       bound);
  }

 private:
  /// Rounds the base, and says how far that moves the logits of base + adapter.
  void round_in_memory(LoadedModel& model, const MergeOptions& options) {
    const std::vector<float> exact = probe_->free_logits(model);
    for (const auto& [parameter, format] : rounding_of(model.store(), options)) {
      round_weight(*format, *parameter, parameter->value().whole().as<float>());
    }
    print_text(
        fmt::format("on a base of {} the adapter's logits differ from those on the weights of the files by {:.2e}\n",
                    options.base_weight_dtype, relative_difference(probe_->free_logits(model), exact)));
  }

  void merge_in_memory(LoadedModel& model, double bound) {
    const std::vector<float> adapted = probe_->logits(model);
    double effect = 0;
    {
      const WithoutAdapters base(model.store());
      effect = relative_difference(probe_->free_logits(model), adapted);
    }
    merge_adapters(model.store());
    merged_ = probe_->logits(model);
    const double drift = relative_difference(merged_, adapted);
    print_text(
        fmt::format("the adapter moves the logits by {:.2e}; merged in float32 they differ by {:.1e} (bound {:.1e})\n",
                    effect, drift, bound));
    if (!(drift <= bound)) drifted("merged in memory", drift, bound);
  }

  ThreadPool& pool_;
  Stream stream_;
  DecoderConfig config_;
  std::unique_ptr<Probe> probe_;
  std::vector<float> merged_;
};

class MergeRun {
 public:
  explicit MergeRun(const MergeOptions& options)
      : options_(options),
        dtype_(parse_weight_dtype(options.dtype, "merge")),
        base_(resolve_model_path(options.model)),
        pool_(options.threads) {
    if (!options.output_is_free) {
      require_apart(options.output, {{base_, "the base model"}, {options.adapter, "the adapter"}});
      require_free_folder(options.output, options.force);
    }
  }

  void run() {
    std::optional<LogitComparison> logits;
    if (options_.compare_logits || options_.tolerance) logits.emplace(options_, base_, pool_);
    LoadedModel model(base_, DType::kF32, dense_format(), vocab_rows_of_adapter(options_.adapter));
    model.set_trainable(TrainableOptions::nothing(options_.adapter));
    for (const std::string& warning : model.adapter_warnings()) print_text(fmt::format("warning: {}\n", warning));
    load_adapter_values(options_.adapter, model.store(), model.checkpoint(), model.map(), pool_);
    write_directory(options_.output, [&](const fs::path& temporary, FileChecksums& checksums) {
      write(model, temporary, checksums);
      if (logits) said_ += logits->check_written(temporary);
    });
    if (options_.written) options_.written();
    // Printed last: if nobody reads standard output any more, the model is complete all the same.
    print_text(said_ + fmt::format("{}: written\n", options_.output));
  }

 private:
  void write(LoadedModel& model, const fs::path& directory, FileChecksums& checksums) {
    copy_model_files(model.directory(), directory);
    if (model.added_vocab_rows() > 0) write_config_vocab_size(directory, model.added_vocab_rows());
    if (const fs::path of_adapter = tokenizer_folder(base_, options_.adapter); of_adapter != base_) {
      replace_tokenizer_files(of_adapter, directory);
    }
    copy_chat_template(options_.adapter, directory);
    const ChatSettings chat = saved_chat_settings(options_.adapter);
    save_chat_settings(directory, {chat.kwargs, {}, chat.split_special_tokens});
    copy_special_tokens(options_.adapter, directory);
    if (!chat.tokens.empty()) {
      Tokenizer tokenizer = Tokenizer::load(directory);
      tokenizer.choose(chat.tokens);
      save_token_choice(directory, chat.tokens, tokenizer);
    }
    if (dtype_) write_config_dtype(directory, *dtype_);
    write_merged_card(directory, options_.model, options_.adapter);
    const auto formats = rounding_of(model.store(), options_);
    const auto rounding = [&](const Parameter& p) {
      const auto format = formats.find(&p);
      return format == formats.end() ? nullptr : format->second;
    };
    const MergeReport report = save_merged(
        directory, model.store(), model.checkpoint(), model.map(), pool_,
        {.max_shard_size = options_.max_shard_size, .dtype = dtype_, .checksums = &checksums, .rounding = rounding});
    if (report.rounded > 0) {
      said_ += fmt::format("{} tensors of the base rounded to {}, which moves them by {:.2e} of their norm\n",
                           report.rounded, options_.base_weight_dtype, report.base_change);
    }
    const Checkpoint written = Checkpoint::open(directory);
    model.map_of(written);  // throws if it is incomplete
    show(report, coarsest_dtype(written));
  }

  void show(const MergeReport& report, DType coarsest) {
    said_ += fmt::format("{} of {} tensors merged in float32{}; {} in {} file{}\n", report.merged, report.tensors,
                         report.replaced > 0 ? fmt::format(", {} as the adapter has them", report.replaced) : "",
                         human_bytes(report.bytes), report.files, report.files == 1 ? "" : "s");
    said_ += fmt::format(
        "checked: the bytes of all {} tensors as written (CRC-32C); W + scale · B A in {} of {} rows, "
        "{:.1f} % of each tensor or more\n",
        report.tensors, report.sampled_rows, report.rows, std::floor(1000 * report.least_share) / 10);
    if (report.lost <= 0.5) return;
    said_ += fmt::format(
        "warning: rounding to {} moves weights by {:.0f} % of what the adapter does, and loses much of "
        "what it learnt; --dtype float32 keeps it\n",
        name_of(coarsest), 100 * report.lost);
  }

  MergeOptions options_;
  std::optional<DType> dtype_;
  fs::path base_;
  ThreadPool pool_;
  std::string said_;  // about the written model
};

}  // namespace

std::optional<DType> parse_weight_dtype(const std::string& name, const char* verb) {
  if (name.empty()) return std::nullopt;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    if (name_of(dtype) == name) return dtype;
  }
  throw UserError(fmt::format("'{}' is not a dtype of {}", name, verb), "--dtype", "use float32 or bfloat16");
}

double merge_tolerance(const DecoderConfig& model) {
  const auto depth = static_cast<double>(deepest_product(model));
  return 16.0 * std::sqrt(depth * products_in_a_row(model)) * 0x1p-24;
}

double rounding_tolerance(const DecoderConfig& model, DType dtype) {
  if (dtype == DType::kF32) return merge_tolerance(model);
  const double half_unit = dtype == DType::kF16 ? 0x1p-12 : 0x1p-9;
  return 4.0 * std::sqrt(products_in_a_row(model)) * half_unit;
}

int run_merge(const MergeOptions& given) {
  MergeOptions options = given;
  options.adapter = resolve_adapter_path(given.adapter).string();
  MergeRun(options).run();
  return 0;
}

}  // namespace hone
