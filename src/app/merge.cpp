#include "app/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>

#include "app/output.h"
#include "app/probe.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "models/hf_config.h"
#include "params/without_adapters.h"
#include "report/humanise.h"
#include "train/saved_tokenizer.h"
#include "weights/adapter.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

int64_t deepest_product(const DecoderConfig& model) {
  int64_t depth = std::max(model.hidden_size, model.num_attention_heads * model.head_dim);
  for (const LayerConfig& layer : model.layers) depth = std::max(depth, layer.intermediate_size);
  return std::max(depth, model.moe.moe_intermediate_size);
}

double products_in_a_row(const DecoderConfig& model) { return 4.0 * static_cast<double>(model.layers.size()) + 1.0; }

[[noreturn]] void drifted(const std::string& what, double drift, double bound) {
  throw Error(ExitCode::kCheckFailed,
              fmt::format("{}: the logits differ by {:.2e}, more than the bound {:.2e}", what, drift, bound), "",
              "nothing was written; more than rounding is a fault of the program or of memory: please report it");
}

/// The dtype of the files that rounds most.
DType coarsest_dtype(const Checkpoint& checkpoint) {
  DType coarsest = DType::kF32;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.entry->dtype == DType::kBF16) return DType::kBF16;
    if (tensor.entry->dtype == DType::kF16) coarsest = DType::kF16;
  }
  return coarsest;
}

class MergeRun {
 public:
  explicit MergeRun(const MergeOptions& options)
      : options_(options),
        dtype_(parse_weight_dtype(options.dtype, "merge")),
        pool_(options.threads),
        stream_(Device{}, pool_) {
    require_free_folder(options.output, options.force);
    const fs::path base = resolve_model_path(options.model);
    model_ = std::make_unique<LoadedModel>(base, DType::kF32);
    model_->set_trainable(TrainableOptions::nothing(options.adapter));
    std::optional<Tokenizer> tokenizer;
    if (fs::exists(base / "tokenizer.json")) tokenizer = Tokenizer::load(base);
    config_ = model_->decoder().config();
    probe_ = std::make_unique<Probe>(probe_prompts(tokenizer ? &*tokenizer : nullptr, config_.vocab_size), stream_);
    model_->load(stream_.device(), pool_, 0, true);
  }

  void run() {
    compute();
    write_directory(options_.output, [&](const fs::path& temporary) {
      write(temporary);
      check_written(temporary);
    });
    print_text(fmt::format("{}: written\n", options_.output));
  }

 private:
  /// Merges in memory and compares.
  void compute() {
    const std::vector<float> adapted = probe_->logits(*model_);
    {
      const WithoutAdapters base(model_->store());
      effect_ = relative_difference(probe_->free_logits(*model_), adapted);
    }
    merge_adapters(model_->store());
    merged_ = probe_->logits(*model_);
    const double drift = relative_difference(merged_, adapted);
    const double bound = options_.tolerance.value_or(merge_tolerance(config_));
    print_text(
        fmt::format("the adapter moves the logits by {:.2e}; merged in float32 they differ by {:.1e} (bound {:.1e})\n",
                    effect_, drift, bound));
    if (!(drift <= bound)) drifted("merged in memory", drift, bound);
  }

  void write(const fs::path& directory) {
    copy_model_files(model_->directory(), directory);
    copy_chat_template(options_.adapter, directory);
    if (dtype_) write_config_dtype(directory, model_->config().json(), *dtype_);
    save_parameters(directory, model_->store(), &model_->checkpoint(), &model_->map(),
                    {.max_shard_size = options_.max_shard_size, .dtype = dtype_});
  }

  /// Opens what was written, on its own, and compares.
  void check_written(const fs::path& directory) {
    model_.reset();  // two float32 models need not fit at once
    LoadedModel written(directory, DType::kF32);
    const DType coarsest = coarsest_dtype(written.checkpoint());
    written.set_trainable(TrainableOptions::nothing());
    written.load(stream_.device(), pool_, 0, true);
    const double drift = relative_difference(probe_->logits(written), merged_);
    const double bound = rounding_tolerance(config_, coarsest);
    print_text(fmt::format("written in {} and read again they differ by {:.1e} (bound {:.1e})\n", name_of(coarsest),
                           drift, bound));
    if (!(drift <= bound)) drifted("written and read again", drift, bound);
    if (drift > 0.5 * effect_) {
      print_text(
          fmt::format("warning: rounding to {} loses much of what the adapter learnt; --dtype float32 keeps it\n",
                      name_of(coarsest)));
    }
  }

  MergeOptions options_;
  std::optional<DType> dtype_;
  ThreadPool pool_;
  Stream stream_;
  std::unique_ptr<LoadedModel> model_;
  DecoderConfig config_;
  std::unique_ptr<Probe> probe_;
  std::vector<float> merged_;
  double effect_ = 0;
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

int run_merge(const MergeOptions& options) {
  MergeRun(options).run();
  return 0;
}

}  // namespace hone
