#include "app/export/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "app/inference_model.h"
#include "app/merge/merge.h"
#include "app/output.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "session/loaded_model.h"
#include "weights/model_folder.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

void check(const ExportOptions& options) {
  if (options.format == "gguf") {
    throw UserError("the format gguf is known, not in this version", "--format",
                    "export safetensors, and convert them with the program that reads gguf");
  }
  if (options.format != "safetensors") {
    throw UserError(fmt::format("'{}' is not a format of export", options.format), "--format", "use safetensors");
  }
  if (options.max_shard_size < 1) throw UserError("a shard has no room", "--max-shard-size", "such as 5GB");
}

/// A format in memory that changes no weight of the files.
DType exact_dtype(const Checkpoint& checkpoint) {
  const auto& tensors = checkpoint.tensors();
  const bool narrow = std::all_of(tensors.begin(), tensors.end(),
                                  [](const auto& tensor) { return tensor.second.entry->dtype == DType::kBF16; });
  return narrow ? DType::kBF16 : DType::kF32;
}

void export_model(const ExportOptions& options) {
  const std::optional<DType> dtype = parse_weight_dtype(options.dtype, "export");
  const fs::path directory = resolve_model_path(options.input);
  require_apart(options.output, {{directory, "the model"}});
  require_free_folder(options.output, options.force);
  LoadedModel model(directory, exact_dtype(Checkpoint::open(directory)));
  model.set_trainable(TrainableOptions::nothing());
  ThreadPool pool(options.threads);
  model.load(Device{}, pool, 0, true);
  write_directory(options.output, [&](const fs::path& temporary, FileChecksums& checksums) {
    copy_model_files(directory, temporary);
    if (dtype) write_config_dtype(temporary, model.config().json(), *dtype);
    save_parameters(temporary, model.store(), &model.checkpoint(), &model.map(),
                    {.max_shard_size = options.max_shard_size, .dtype = dtype, .checksums = &checksums});
    model.map_of(Checkpoint::open(temporary));  // it is complete
  });
  print_text(fmt::format("{}: written\n", options.output));
}

}  // namespace

int run_export(const ExportOptions& options) {
  check(options);
  const fs::path input = options.input;
  if (!is_adapter_folder(input)) {
    export_model(options);
    return 0;
  }
  MergeOptions merge;
  merge.model = options.model.empty() ? base_of_adapter(input) : options.model;
  merge.adapter = options.input;
  merge.output = options.output;
  merge.dtype = options.dtype;
  merge.max_shard_size = options.max_shard_size;
  merge.threads = options.threads;
  merge.force = options.force;
  return run_merge(merge);
}

}  // namespace hone
